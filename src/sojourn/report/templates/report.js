(function () {
  "use strict";
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 560px)");
  const PAPER = 830; /* the style sheet prints plots at three quarters, 640 on paper */
  let printing = false;

  function isDark() {
    if (printing) return false;
    return root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  }

  function wash(hex, alpha) {
    const n = parseInt(hex.slice(1), 16);
    return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${alpha})`;
  }

  function chosenView(section, views) {
    const wanted = {};
    for (const button of section.querySelectorAll('.switch [aria-pressed="true"]')) {
      wanted[button.dataset.kind] = button.dataset.value;
    }
    const fits = (view) =>
      (!view.metric || !wanted.metric || view.metric === wanted.metric) &&
      (!view.axis || !wanted.axis || view.axis === wanted.axis);
    return views.find(fits) || views[0];
  }

  function hiddenIn(section) {
    const off = section.querySelectorAll('.chip[aria-pressed="false"]');
    return new Set([...off].map((chip) => chip.dataset.strategy));
  }

  /* a label leaves the curves most of the width */
  /* Plotly takes tags in its texts for bold type, links and lines: names are shown letter by letter. */
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
  const pen = document.createElement("canvas").getContext("2d");
  function widthOf(text) {
    pen.font = `bold 12px ${FONT}`;
    return pen.measureText(text).width;
  }

  function styled(view, hidden, wide, width) {
    const dark = isDark();
    const side = dark ? "dark" : "light";
    const ink = dark ? "#a2abb9" : "#5b6472";
    const grid = dark ? "#2b313c" : "#ece9e4";
    const data = view.data.map((trace) => {
      const color = trace.meta[side];
      const shown = !hidden.has(trace.meta.strategy);
      const out = Object.assign({}, trace, { visible: shown });
      if (trace.meta.band) out.fillcolor = wash(color, dark ? 0.2 : 0.14);
      if (trace.line) out.line = Object.assign({}, trace.line, { color: color });
      if (trace.marker || trace.type === "bar") out.marker = Object.assign({}, trace.marker, { color: color });
      if (trace.text) out.textfont = { color: color, size: 12 };
      return out;
    });
    const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, tickcolor: grid, ticks: "" };
    const layout = Object.assign({}, view.layout, {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: FONT, size: 12, color: ink },
      hoverlabel: { bgcolor: dark ? "#262c37" : "#ffffff", bordercolor: grid, font: { color: dark ? "#e8ebf0" : "#1b2230" } },
      dragmode: false,
    });
    layout.xaxis = Object.assign({}, view.layout.xaxis, axis);
    layout.yaxis = Object.assign({}, view.layout.yaxis, axis);
    const inks = new Map(view.data.map((trace) => [trace.meta.strategy, trace.meta[side]]));
    /* where there is no room beside the plot, only strong curves are labelled, inside it */
    const strong = new Set(view.data.filter((trace) => trace.meta.strong).map((trace) => trace.meta.strategy));
    const picks = new Set(view.data.filter((trace) => trace.meta.pick).map((trace) => trace.meta.strategy));
    const inside = { xanchor: "right", xshift: -2 };
    layout.annotations = (view.layout.annotations || [])
      .filter((note) => !hidden.has(note.name) && (wide || (strong.size < 4 && strong.has(note.name))))
      .map((note) => Object.assign({}, note, { text: short(note.text, width > 540 ? 38 : 26), hovertext: plain(note.text), font: { size: 12, color: inks.get(note.name) } },
        wide ? {} : Object.assign({ yshift: note.yshift - 10 }, inside)));
    const longest = wide ? Math.max(0, ...layout.annotations.map((note) => widthOf(note.text))) : 0;
    for (const note of layout.annotations) note.text = picks.has(note.name) ? `<b>${plain(note.text)}</b>` : plain(note.text);
    layout.margin = Object.assign({}, view.layout.margin, { r: longest ? 14 + longest : 14 });
    if (printing) layout.width = PAPER;
    return { data: data, layout: layout };
  }

  function draw(plot) {
    const section = plot.closest("[data-section]");
    const view = chosenView(section, figures[plot.id]);
    if (!plot.clientWidth) return Promise.resolve(); /* in a closed part: drawn when it is opened */
    const wide = printing || (!narrow.matches && plot.clientWidth > 380);
    const drawn = styled(view, hiddenIn(section), wide, plot.clientWidth);
    if (!printing) drawn.layout.height = plot.clientHeight;
    return Plotly.react(plot, drawn.data, drawn.layout, { responsive: true, displayModeBar: false }).then(() => {
      plot.dataset.drawn = "true";
      plot.dataset.view = [view.metric, view.axis].filter(Boolean).join(" ");
    });
  }

  const plots = [...document.querySelectorAll(".plot")];
  function drawAll(among) {
    root.classList.toggle("dark", isDark());
    return among.reduce((before, plot) => before.then(() => draw(plot)), Promise.resolve());
  }

  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("sojourn-theme", root.dataset.theme); } catch (error) { /* not stored */ }
    drawAll(plots);
  });
  system.addEventListener("change", () => drawAll(plots));
  narrow.addEventListener("change", () => drawAll(plots));

  for (const section of document.querySelectorAll("[data-section]")) {
    const inside = plots.filter((plot) => section.contains(plot));
    for (const button of section.querySelectorAll(".switch button")) {
      button.addEventListener("click", () => {
        for (const other of button.parentElement.children) {
          other.setAttribute("aria-pressed", String(other === button));
        }
        drawAll(inside);
      });
    }
    for (const chip of section.querySelectorAll(".chip")) {
      chip.addEventListener("click", () => {
        chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
        drawAll(inside);
      });
    }
  }

  const folds = [...document.querySelectorAll("details.fold")];
  for (const fold of folds) {
    fold.addEventListener("toggle", () => drawAll(plots.filter((plot) => fold.contains(plot))));
  }
  let closed = [];
  function forPrint(now) {
    printing = now;
    if (now) closed = folds.filter((fold) => !fold.open);
    for (const fold of closed) fold.open = now;
    root.classList.toggle("dark", isDark());
    for (const plot of plots) draw(plot);
  }

  const copy = document.getElementById("copy");
  if (copy) {
    copy.addEventListener("click", () => {
      const command = document.getElementById("command");
      const done = () => { copy.textContent = "Copied"; };
      const select = () => { getSelection().selectAllChildren(command); };
      if (!navigator.clipboard) return select();
      navigator.clipboard.writeText(command.textContent).then(done, select);
    });
  }
  window.addEventListener("beforeprint", () => forPrint(true));
  window.addEventListener("afterprint", () => forPrint(false));
  drawAll(plots).then(() => { document.body.dataset.ready = "true"; });
})();
