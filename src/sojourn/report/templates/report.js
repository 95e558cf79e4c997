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

  function styled(view, hidden, wide) {
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
      font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif", size: 12, color: ink },
      hoverlabel: { bgcolor: dark ? "#262c37" : "#ffffff", bordercolor: grid, font: { color: dark ? "#e8ebf0" : "#1b2230" } },
      dragmode: false,
    });
    layout.xaxis = Object.assign({}, view.layout.xaxis, axis);
    layout.yaxis = Object.assign({}, view.layout.yaxis, axis);
    const inks = new Map(view.data.map((trace) => [trace.meta.strategy, trace.meta[side]]));
    layout.annotations = wide
      ? (view.layout.annotations || [])
          .filter((note) => !hidden.has(note.name))
          .map((note) => Object.assign({}, note, { font: { size: 12, color: inks.get(note.name) } }))
      : [];
    const longest = Math.max(0, ...layout.annotations.map((note) => note.text.length));
    layout.margin = Object.assign({}, view.layout.margin, { r: longest ? 16 + 7 * longest : 14 });
    if (printing) layout.width = PAPER;
    return { data: data, layout: layout };
  }

  function draw(plot) {
    const section = plot.closest("[data-section]");
    const view = chosenView(section, figures[plot.id]);
    const wide = printing || (!narrow.matches && plot.clientWidth > 380);
    const drawn = styled(view, hiddenIn(section), wide);
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
    try { localStorage.setItem("sojourn-theme", root.dataset.theme); } catch (error) { /* not kept */ }
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

  function forPrint(now) {
    printing = now;
    root.classList.toggle("dark", isDark());
    for (const plot of plots) draw(plot);
  }
  window.addEventListener("beforeprint", () => forPrint(true));
  window.addEventListener("afterprint", () => forPrint(false));
  drawAll(plots).then(() => { document.body.dataset.ready = "true"; });
})();
