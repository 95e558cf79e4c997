(function () {
  const base = known.settings;
  const fresh = () => JSON.parse(JSON.stringify(base));
  const SHORT = { m: "concurrency", d: "dispatch", a: "exponent", lr: "learning_rate", b: "debias", g: "goal", t: "squared_gradient_norm", p: "partition", h: "horizon" };
  const WORDS = new Set(["dispatch", "goal", "partition"]);
  let state = fresh(), pins = [], metric = "accuracy", tries = [], latest = null;

  /* ---- the state in the address ---- */
  function pack(settings) {
    const parts = new URLSearchParams();
    for (const [short, name] of Object.entries(SHORT)) {
      if (settings[name] !== undefined && settings[name] !== base[name]) parts.set(short, settings[name]);
    }
    if (String(settings.rates) !== String(base.rates)) parts.set("r", settings.rates.join(","));
    if (String(settings.counts) !== String(base.counts)) parts.set("c", settings.counts.join(","));
    return parts;
  }
  function unpack(text) {
    const parts = new URLSearchParams(text), found = fresh();
    for (const [short, name] of Object.entries(SHORT)) {
      if (parts.has(short)) found[name] = WORDS.has(name) ? parts.get(short) : Number(parts.get(short));
    }
    for (const [short, name] of [["r", "rates"], ["c", "counts"]]) {
      if (!parts.has(short)) continue;
      const values = parts.get(short).split(",").map(Number);
      if (values.length === base[name].length && values.every((v) => v > 0)) found[name] = values;
    }
    return found;
  }
  function keepInAddress() {
    const parts = pack(state);
    for (const pin of pins) parts.append("pin", pack(pin).toString());
    history.replaceState(null, "", `${location.pathname}${location.search}#${parts}`);
  }
  function readAddress() {
    const hash = location.hash.slice(1);
    state = unpack(hash);
    pins = new URLSearchParams(hash).getAll("pin").map(unpack);
  }

  /* ---- asking: one question at a time, the latest wins ---- */
  const page = String(Math.random()); /* so that its own later questions supersede earlier ones */
  let busy = false, waiting = false, later = null;
  async function changed() {
    keepInAddress();
    clearTimeout(later); /* advice about settings comes after their numbers */
    if (busy) { waiting = true; return; }
    busy = true;
    const asked = JSON.parse(JSON.stringify(state)), begun = performance.now();
    const width = Math.max(300, Math.min(1200, $("timeline").clientWidth));
    const answered = (name) => { document.body.dataset[name] = String(Math.round(performance.now() - begun)); };
    try {
      latest = { ...latest, ...(await ask("view", { ...asked, parts: ["numbers"] })) };
      drawNumbers(latest);
      answered("numbers");
      complain("problem", null);
      if (!waiting) later = setTimeout(advise, 60);
      /* The pictures take longer; they are not drawn for settings that are no longer on the page. */
      if (!waiting) { latest = { ...latest, ...(await ask("view", { ...asked, parts: ["map"], page })) }; drawMap(latest.map); }
      if (!waiting) { latest = { ...latest, ...(await ask("view", { ...asked, parts: ["timeline"], width, page })) }; drawTimeline(latest.timeline); answered("answered"); }
    } catch (error) {
      complain("problem", error.message);
    }
    busy = false;
    if (waiting) { waiting = false; changed(); }
  }
  async function advise() {
    const asked = JSON.stringify(state);
    try {
      const found = await ask("advice", { ...state, page });
      if (found.superseded || asked !== JSON.stringify(state)) return;
      $("title").textContent = found.title;
      $("text").textContent = found.text;
      $("use").hidden = found.is_best;
      $("use").onclick = () => { Object.assign(state, found.use); show(); changed(); };
      document.querySelector(".verdict").classList.toggle("done", found.is_best);
      document.body.dataset.ready = "true";
    } catch (error) {
      complain("problem", error.message);
    }
    compare();
  }
  function complain(where, text) {
    $(where).hidden = !text;
    $(where).textContent = text || "";
  }

  /* ---- controls ---- */
  const rounded = (value) => Number(value.toPrecision(3));
  function buildClasses() {
    const lowest = Math.log10(Math.min(...base.rates)) - 1, highest = Math.log10(Math.max(...base.rates)) + 1;
    $("classes").replaceChildren(...known.names.map((name, k) => {
      const count = element("input", { type: "number", class: "exact few", min: 1, step: 1, "aria-label": `${name}: clients`, "data-count": k,
        oninput: (e) => { if (valid(e.target, "a whole number from 1 on", whole)) { state.counts[k] = Number(e.target.value); bounds(); changed(); } } });
      const rate = element("input", { type: "number", class: "exact", min: 0, step: "any", "aria-label": `${name}: tasks per time unit`, "data-rate": k,
        oninput: (e) => { if (valid(e.target, "a number above 0", above0)) { state.rates[k] = Number(e.target.value); show(e.target); changed(); } } });
      const slide = element("input", { type: "range", min: lowest, max: highest, step: 0.01, "aria-label": `${name}: speed`, "data-speed": k,
        oninput: (e) => { state.rates[k] = rounded(10 ** Number(e.target.value)); show(e.target); changed(); } });
      return element("div", { class: "class-field" }, element("b", { title: name }, name), count, element("span", {}, "×"), rate, slide);
    }));
  }
  const bounds = () => { $("tasks").max = Math.max(3 * state.counts.reduce((a, b) => a + b, 0), state.concurrency); };
  function show(except) {
    bounds();
    const put = (input, value) => {
      if (input === except) return;
      input.value = value;
      if (input.getAttribute("aria-invalid") === "true") valid(input, "", () => true);
    };
    for (const input of document.querySelectorAll("[data-count]")) put(input, state.counts[input.dataset.count]);
    for (const input of document.querySelectorAll("[data-rate]")) put(input, state.rates[input.dataset.rate]);
    for (const input of document.querySelectorAll("[data-speed]")) {
      put(input, Math.log10(state.rates[input.dataset.speed]));
      input.setAttribute("aria-valuetext", `${shown(state.rates[input.dataset.speed])} tasks per time unit`);
    }
    for (const input of document.querySelectorAll("[name=dispatch]")) input.checked = input.value === state.dispatch;
    for (const input of document.querySelectorAll("[name=goal]")) input.checked = input.value === state.goal;
    put($("exponent"), state.exponent); put($("tasks"), state.concurrency); put($("tasks-exact"), state.concurrency);
    put($("rate"), Math.log10(state.learning_rate)); put($("rate-exact"), state.learning_rate); put($("debias"), state.debias); put($("norm"), state.squared_gradient_norm);
    $("rate").setAttribute("aria-valuetext", shown(state.learning_rate));
    $("exponent-out").textContent = `a = ${state.exponent}`;
    $("debias-out").textContent = state.debias;
    $("exponent-field").classList.toggle("off", state.dispatch !== "routed");
    $("exponent").disabled = state.dispatch !== "routed";
    $("norm-field").hidden = state.goal === "noise-rate";
    $("partition").value = state.partition;
  }
  /* An invalid value is marked at its field with the range; the settings stay as they were. */
  function valid(input, range, good) {
    const value = Number(input.value), right = input.value !== "" && Number.isFinite(value) && good(value);
    input.setAttribute("aria-invalid", String(!right));
    let note = input.parentElement.querySelector(`[data-for="${input.id || input.getAttribute("aria-label")}"]`);
    if (right) { if (note) note.remove(); return true; }
    if (!note) { note = element("small", { class: "wrong", role: "alert", "data-for": input.id || input.getAttribute("aria-label") }); input.parentElement.append(note); }
    note.textContent = `${input.getAttribute("aria-label") || "this"} must be ${range}`;
    return false;
  }
  const above0 = (v) => v > 0, MOST_TASKS = 1000000;
  const whole = (v) => Number.isInteger(v) && v >= 1;
  const RANGES = {
    "tasks-exact": [`a whole number from 1 to ${MOST_TASKS.toLocaleString("en")}`, (v) => whole(v) && v <= MOST_TASKS],
    "rate-exact": ["a number above 0", above0], norm: ["a number above 0", above0], horizon: ["a number above 0", above0],
  };
  function listen(id, then) {
    const [range, good] = RANGES[id] || ["a number", () => true];
    $(id).addEventListener("input", (e) => {
      if (!valid(e.target, range, good)) return;
      then(Number(e.target.value)); show(e.target); changed();
    });
  }
  listen("exponent", (v) => { state.exponent = v; });
  listen("tasks", (v) => { state.concurrency = v; });
  listen("tasks-exact", (v) => { state.concurrency = v; });
  listen("rate", (v) => { state.learning_rate = rounded(10 ** v); });
  listen("rate-exact", (v) => { state.learning_rate = v; });
  listen("debias", (v) => { state.debias = v; });
  listen("norm", (v) => { state.squared_gradient_norm = v; });
  listen("horizon", (v) => { state.horizon = v; });
  for (const name of ["dispatch", "goal"]) {
    for (const input of document.querySelectorAll(`[name=${name}]`)) input.addEventListener("change", () => { state[name] = input.value; show(); changed(); });
  }
  const HELD = { "dirichlet(0.5)": "a mix of digits each", homogeneous: "all digits alike", "by-speed": "digits go with speed" };
  $("partition").append(...known.partitions.map((name) => element("option", { value: name }, HELD[name] || name)));
  $("partition").addEventListener("change", (e) => { state.partition = e.target.value; changed(); });
  document.querySelector("form").addEventListener("submit", (e) => e.preventDefault());
  $("reset").addEventListener("click", () => { state = fresh(); show(); changed(); });
  $("copy").addEventListener("click", async () => {
    try { await navigator.clipboard.writeText($("command").textContent); $("copy").textContent = "Copied"; } catch (error) { getSelection().selectAllChildren($("command")); }
    setTimeout(() => { $("copy").textContent = "Copy command"; }, 1500);
  });
  async function save(file) {
    try {
      const kept = await ask("save", { ...state, file });
      const link = element("a", { href: URL.createObjectURL(new Blob([kept.text], { type: "text/plain" })), download: kept.name });
      document.body.append(link); link.click(); link.remove();
    } catch (error) { complain("problem", error.message); }
  }
  $("save-strategy").addEventListener("click", () => save("strategy.toml"));
  $("save-fleet").addEventListener("click", () => save("fleet.csv"));

  /* ---- answers ---- */
  function drawNumbers(view) {
    const now = view.summary;
    const tile = (label, value, note, caution) => element("div", {}, element("dt", {}, label), element("dd", {}, value), element("dd", { class: caution ? "caution" : null }, note));
    const measured = now.curvature_measured ? "measured on the digits" : "assumed; a try measures it";
    const above = now.curvature_measured && state.learning_rate > now.stable_rate;
    const tiles = [
      tile("updates per time unit", shown(now.throughput), `clients are busy ${percent(now.busy)} of the time`),
      tile("noise rate", shown(now.noise_rate), now.noise_over_floor < 1.005 ? "the floor: no policy has less" : `${shown(now.noise_over_floor)} times the floor of ${shown(now.noise_floor)}`),
      tile("worst staleness, in updates", shown(now.worst_staleness), `class ${now.worst_class}`),
      tile("a task takes, in time units", shown(now.mean_staleness_time), `${few(now.waiting)} of ${now.in_flight} tasks wait`),
      now.time_to_target !== null || state.goal === "noise-rate" || state.dispatch === "never-queue"
        ? tile("learning rate stable up to", shown(now.stable_rate), above ? `yours, ${shown(state.learning_rate)}, is above it; curvature ${shown(now.curvature)}, ${measured}` : `at curvature ${shown(now.curvature)}, ${measured}`, above)
        : null,
      state.goal === "time-to-accuracy" ? tile("time to the target", now.time_to_target === null ? "not known" : shown(now.time_to_target), now.time_to_target === null ? "out of reach, or not routed" : "by the bound, at its best learning rate") : null,
    ].filter(Boolean);
    $("tiles").replaceChildren(...tiles);
    $("strip").textContent = `${shown(now.throughput)} updates per time unit · noise ${shown(now.noise_rate)} (${shown(now.noise_over_floor)} × floor)`;
    drawClasses(view.classes);
    $("command").textContent = view.command.line;
    $("needs").textContent = view.command.needs.length ? `after saving ${view.command.needs.join(" and ")}` : "tells the same numbers";
    if (document.activeElement !== $("horizon")) $("horizon").value = view.horizon;
  }

  function drawTimeline(timeline) {
    $("timeline").innerHTML = timeline.svg;
    $("timeline-words").textContent = `${timeline.words}. A bar is a task: the stronger its shade, the staler. A gap is an idle client.`;
  }

  let pressed = false, at = null;
  function drawMap(map) {
    /* A map may be drawn anew while it is read: the keyboard keeps its square and the focus. */
    const focused = $("map").contains(document.activeElement);
    const noise = state.goal === "noise-rate";
    const goal = noise ? "noise rate" : "time to the target";
    $("map-hint").textContent = `${goal} divided by the best: the stronger the shade, the better. Click a square to go there, or use the arrow keys and Enter.`;
    const box = $("map"), width = Math.max(290, box.clientWidth), tall = 350, left = 44, aside = map.never ? 76 : 0, right = 12 + aside, top = 22, bottom = 50;
    const columns = map.exponents.length, rows = map.tasks.length;
    const wide = (width - left - right) / columns, high = (tall - top - bottom) / rows;
    const best = map.best;
    const svg = element("svg", { class: "chart timeline map", viewBox: `0 0 ${width} ${tall}`, role: "application", tabindex: 0,
      "aria-label": `${noise ? "Noise rate" : "Time to the target"} over routing exponent and tasks in flight; best ${shown(best.value)} at exponent ${shown(best.exponent)} and ${best.tasks} tasks` });
    const cells = [];
    const say = (i, j) => {
      const value = j < columns ? map.values[i][j] : map.never.values[i];
      const where = j < columns ? `exponent ${shown(map.exponents[j])}` : "never queue";
      $("map-value").textContent = `${where}, ${map.tasks[i]} tasks: ${value === null ? "out of reach" : `${goal} ${shown(value)}`}`;
    };
    const go = (i, j) => {
      if (j < columns) { state.exponent = Number(map.exponents[j].toFixed(4)); state.dispatch = "routed"; } else state.dispatch = "never-queue";
      state.concurrency = map.tasks[i]; show(); changed();
    };
    const cell = (i, j, x, wide, shade) => {
      const drawn = element("rect", { class: `cell ${shade === "open" ? "none" : shade}`, x, y: top + (rows - 1 - i) * high + 0.5, width: wide - 1, height: high - 1,
        "data-at": `${i},${j}`, onpointerenter: () => say(i, j), onpointerdown: () => say(i, j) });
      svg.append(drawn);
      (cells[i] = cells[i] || [])[j] = drawn;
    };
    map.shades.forEach((row, i) => row.forEach((shade, j) => cell(i, j, left + j * wide + 0.5, wide, shade)));
    if (map.never) {
      map.never.shades.forEach((shade, i) => cell(i, columns, width - aside, aside - 8, shade));
      svg.append(element("text", { x: width - aside / 2 - 4, y: 14, "text-anchor": "middle" }, "never queue"));
    }
    /* Not `click`: a square that is drawn anew between press and release would lose it. */
    box.onpointerdown = () => { pressed = true; };
    box.onpointercancel = () => { pressed = false; };
    box.onpointerup = (event) => {
      const under = pressed && document.elementFromPoint(event.clientX, event.clientY)?.closest("[data-at]");
      pressed = false;
      if (under) go(...under.dataset.at.split(",").map(Number));
    };
    if (!at || at[0] >= rows || at[1] >= cells[0].length) at = [rows >> 1, columns >> 1];
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (event.key === "Enter") go(...at);
      if (!step) return;
      event.preventDefault();
      cells[at[0]][at[1]].classList.remove("at");
      at = [Math.min(rows - 1, Math.max(0, at[0] + step[0])), Math.min(cells[0].length - 1, Math.max(0, at[1] + step[1]))];
      cells[at[0]][at[1]].classList.add("at");
      say(...at);
    });
    const ax = (a) => left + ((a - map.exponents[0]) / (map.exponents[columns - 1] - map.exponents[0])) * (columns - 1) * wide + wide / 2;
    const ay = (m) => {
      let i = map.tasks.findIndex((t) => t >= m);
      if (i < 0) i = rows - 1;
      const down = i ? map.tasks[i - 1] : map.tasks[0], up = map.tasks[i];
      const place = up > down ? i - 1 + (Math.min(m, up) - down) / (up - down) : i;
      return top + (rows - 1 - place) * high + high / 2;
    };
    for (const [a, name] of [[0, "uniform"], [0.5, "√ speed"], [1, "balanced"]]) svg.append(element("text", { x: ax(a), y: tall - bottom + 17, "text-anchor": "middle" }, name));
    svg.append(element("text", { x: (left + width - right) / 2, y: tall - 12, "text-anchor": "middle" }, "routing exponent a"));
    for (const i of [0, Math.floor(rows / 2), rows - 1]) svg.append(element("text", { x: left - 7, y: top + (rows - 1 - i) * high + high / 2 + 4, "text-anchor": "end" }, map.tasks[i]));
    const middle = top + (tall - top - bottom) / 4;
    svg.append(element("text", { x: 12, y: middle, transform: `rotate(-90 12 ${middle})`, "text-anchor": "middle" }, "tasks m"));
    const label = (x, y, text) => svg.append(element("text", { x: x > width - 90 ? x - 11 : x + 11, y: y + 4, class: "strong", "text-anchor": x > width - 90 ? "end" : "start" }, text));
    const bx = ax(best.exponent), by = ay(best.tasks);
    svg.append(element("path", { class: "best", d: `M${bx} ${by - 9}l2.6 6.1 6.6.6-5 4.4 1.5 6.5-5.7-3.4-5.7 3.4 1.5-6.5-5-4.4 6.6-.6z` }));
    const y = ay(state.concurrency);
    if (state.dispatch === "routed") {
      const x = ax(Math.min(1.5, Math.max(-0.25, state.exponent))), near = Math.hypot(x - bx, y - by) < 40;
      svg.append(element("circle", { class: "you", cx: x, cy: y, r: 6.5 }));
      label(x, near ? y + (y < by ? -12 : 16) : y, "you");
      label(bx, by, "best routing");
    } else {
      svg.append(element("path", { class: "line-you", d: `M${left} ${y}H${width - right}` }));
      svg.append(element("text", { x: left + 6, y: y < top + 22 ? y + 17 : y - 6, class: "strong" }, state.dispatch === "planned" ? "you: the best routing" : "you: never queue"));
      label(bx, Math.abs(by - y) < 14 ? by + 20 : by, "best routing");
    }
    box.replaceChildren(svg);
    if (focused) { svg.focus(); cells[at[0]][at[1]].classList.add("at"); }
    $("map-legend").replaceChildren(...map.legend.map(([shade, text]) => element("li", {}, element("svg", { class: "timeline", viewBox: "0 0 14 9", width: 14, height: 9, "aria-hidden": "true" }, element("rect", { class: `swatch ${shade}`, width: 14, height: 9 })), ` ${text}`)));
  }

  const few = (value) => (Math.abs(value) < 1e-9 ? "0" : value < 0.001 ? "< 0.001" : shown(value));
  function drawClasses(rows) {
    const most = { staleness: Math.max(...rows.map((r) => r.staleness)), weight: Math.max(...rows.map((r) => r.weight)), waiting: Math.max(1e-9, ...rows.map((r) => r.waiting)) };
    const meter = (share, text, kind) => {
      const bar = element("span", { class: `meter ${kind || ""}`, "aria-hidden": "true" }, element("i", { style: `width:${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%` }));
      return element("td", {}, bar, text);
    };
    const head = ["class", "share of tasks", "busy", "tasks waiting", "staleness, updates", "weight of an update"];
    $("class-rows").replaceChildren(
      element("thead", {}, element("tr", {}, head.map((text) => element("th", { scope: "col" }, text)))),
      element("tbody", {}, rows.map((r) => element("tr", {},
        element("td", {}, element("b", {}, r.name), element("small", {}, `${r.count} × ${shown(r.rate)}`)),
        meter(r.share, percent(r.share, 1)), meter(r.busy, percent(r.busy)), meter(r.waiting / most.waiting * (r.waiting > 1e-6), few(r.waiting), "wait"),
        meter(r.staleness / most.staleness, shown(r.staleness)), meter(r.weight / most.weight, `${shown(r.weight)} ×`)))));
  }

  /* ---- pins ---- */
  $("pin").addEventListener("click", () => {
    if (!pins.some((pin) => JSON.stringify(pin) === JSON.stringify(state))) pins.push(JSON.parse(JSON.stringify(state)));
    pins = pins.slice(-8);
    keepInAddress();
    compare();
  });
  let comparing = 0;
  async function compare() {
    const turn = (comparing += 1), listed = JSON.stringify(pins);
    let rows;
    try { rows = await ask("compare", { settings: [state, ...pins] }); } catch (error) { return; }
    if (turn !== comparing) return; /* asked again since */
    const head = ["settings", "updates per time unit", "noise rate", "times the floor", "worst staleness, updates", "a task takes, time units", "stable η up to", "tried: accuracy", ""];
    const tried = (words) => { const found = tries.filter((t) => t.words === words && t.end === "finished"); return found.length ? percent(found[found.length - 1].accuracy, 1) : "–"; };
    const texts = (row, k) => [k ? row.words : `now: ${row.words}`, shown(row.throughput), shown(row.noise_rate), shown(row.noise_over_floor), shown(row.worst_staleness), shown(row.mean_staleness_time), shown(row.stable_rate), tried(row.words)];
    const table = $("compared");
    if (table.dataset.listed === listed) { /* the same buttons: one that is made anew under the pointer loses its click */
      rows.forEach((row, k) => texts(row, k).forEach((text, j) => { table.tBodies[0].rows[k].cells[j].textContent = text; }));
      return;
    }
    table.replaceChildren(
      element("thead", {}, element("tr", {}, head.map((text, k) => element("th", { scope: "col", class: k ? "n" : null }, text)))),
      element("tbody", {}, rows.map((row, k) => element("tr", { class: k ? null : "now" },
        texts(row, k).map((text, j) => element("td", { class: j ? "n" : null }, text)),
        element("td", {}, k ? [
          element("button", { type: "button", onclick: () => { state = JSON.parse(JSON.stringify(pins[k - 1])); show(); changed(); } }, "Go there"), " ",
          element("button", { type: "button", "aria-label": `Unpin ${row.words}`, onclick: () => { pins.splice(k - 1, 1); keepInAddress(); compare(); } }, "Unpin")] : null)))));
    table.dataset.listed = listed;
    table.dataset.rows = rows.length;
  }

  /* ---- tries ---- */
  let polling = null;
  $("try").addEventListener("click", async () => {
    try { await ask("try", state); complain("try-problem", null); poll(); } catch (error) { complain("try-problem", error.message); }
  });
  for (const button of document.querySelectorAll("[data-metric]")) {
    button.addEventListener("click", () => {
      metric = button.dataset.metric;
      for (const other of document.querySelectorAll("[data-metric]")) other.setAttribute("aria-pressed", String(other === button));
      drawTries();
    });
  }
  async function poll() {
    clearTimeout(polling);
    let before = JSON.stringify(tries.map((t) => t.end));
    try { tries = (await ask("tries")).tries; } catch (error) { return; }
    drawTries();
    if (JSON.stringify(tries.map((t) => t.end)) !== before && tries.some((t) => t.end)) changed();
    polling = setTimeout(poll, tries.some((t) => t.end === null) ? 300 : 4000);
  }
  function drawTries() {
    const ink = (t) => known.inks[(t.number - 1) % known.inks.length];
    const drawn = tries.filter((t) => t.rows.length);
    $("curves").hidden = !drawn.length;
    if (drawn.length) {
      curves($("curves"), {
        series: drawn.map((t) => ({ name: t.words, label: `try ${t.number}:`, x: t.rows.map((r) => r.time), y: t.rows.map((r) => r[`test_${metric}`]), ink: ink(t) })),
        xLabel: "time (virtual units)", yLabel: `test ${metric}`, asPercent: metric === "accuracy", low: 0,
        high: metric === "accuracy" ? 1 : Math.min(2.5, Math.max(...drawn.map((t) => t.rows[0].test_loss))) * 1.02, xHigh: Math.max(...drawn.map((t) => t.horizon)),
        words: `Test ${metric} over time of ${drawn.length} tries`,
      });
    }
    const howOf = (t) => {
      const at = t.rows.length ? `${percent(t.accuracy, 1)}, loss ${shown(t.loss)}` : "starting";
      return t.end === null ? (t.rounds ? `${at}, ${percent(t.done / t.rounds)} done` : at) : t.end === "failed" ? t.error : `${at}, ${t.end}`;
    };
    /* Buttons stay while a try runs: one that is made anew under the pointer loses its click. */
    const listed = JSON.stringify(tries.map((t) => [t.number, t.end]));
    if ($("tries").dataset.listed === listed) {
      tries.forEach((t, k) => { $("tries").children[k].querySelector(".how").textContent = howOf(t); });
      return;
    }
    $("tries").dataset.listed = listed;
    $("tries").replaceChildren(...tries.map((t) => {
      const how = howOf(t);
      return element("li", { "data-end": t.end || "running" }, sample(ink(t)), element("span", { class: "what" }, `try ${t.number}: ${t.words}, ${HELD[t.partition]}`), element("span", { class: "how" }, how),
        element("button", { type: "button", "aria-label": `${t.end === null ? "Stop" : "Remove"} try ${t.number}`, onclick: async () => { await ask("stop", { number: t.number }); poll(); } }, t.end === null ? "Stop" : "Remove"));
    }));
  }

  $("about").textContent = `${known.source}: ${known.fleet}`;
  $("grouped").textContent = known.note;
  readAddress();
  buildClasses();
  show();
  changed();
  poll();
  addEventListener("hashchange", () => { readAddress(); show(); changed(); });
  let resized = null;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => { if (latest && latest.map) drawMap(latest.map); drawTries(); }, 120); });
})();
