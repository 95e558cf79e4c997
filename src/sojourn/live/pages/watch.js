(function () {
  let latest = null, metric = "value", last = "", drawn = "", drawing = false;
  const STATES = { running: "running", silent: "silent", finished: "finished", failed: "failed", waiting: "waiting" };

  function duration(seconds) {
    if (seconds === null || seconds === undefined) return "–";
    if (seconds < 90) return `${Math.round(seconds)} s`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
    return `${(seconds / 3600).toFixed(1)} h`;
  }
  function table(id, head, rows) {
    $(`${id}-card`).hidden = !rows.length;
    $(id).replaceChildren(
      element("thead", {}, element("tr", {}, head.map((text, k) => element("th", { scope: "col", class: k ? "n" : null }, text)))),
      element("tbody", {}, rows.map((cells) => element("tr", {}, cells.map((cell, k) => element("td", { class: k ? "n" : null }, cell))))));
  }
  function draw(now) {
    document.title = `${now.title} – Sojourn`;
    $("title").textContent = now.title;
    $("text").textContent = now.text.replace(/ (?=[±%])|(?<=±) /g, "\u00a0");
    $("groups").replaceChildren(...(now.groups || []).map(([heading, names]) => element("li", {}, element("b", {}, heading), `: ${names.join("; ")}`)));
    $("next").hidden = !now.command;
    $("next").textContent = now.command || "";
    $("h-curves").textContent = now.state === "finished" ? "Learning curves" : "Learning curves so far";
    document.querySelector(".verdict").classList.toggle("done", now.state === "finished");
    $("progress").hidden = now.fraction === null || now.fraction === undefined || now.state === "finished";
    if (!$("progress").hidden) {
      $("progress").firstElementChild.style.width = `${100 * now.fraction}%`;
      $("progress").setAttribute("aria-valuenow", Math.round(100 * now.fraction));
    }
    const tile = (label, value, note) => element("div", {}, element("dt", {}, label), element("dd", {}, value), element("dd", {}, note || ""));
    const tiles = [
      tile("state", element("span", {}, element("i", { class: `dotted ${now.state === "running" ? "on" : now.state === "failed" ? "off" : ""}` }), STATES[now.state]), now.age === null ? "nothing written yet" : `last written ${duration(now.age)} ago`),
      now.fraction !== null && now.fraction !== undefined && now.state !== "finished" && tile("done", percent(now.fraction, 0), now.left === null ? (now.state === "running" ? "time left: not known yet" : "") : `about ${duration(now.left)} left`),
      now.throughput !== undefined && tile("updates per second", shown(now.throughput), "over the last twenty"),
      now.predicted_staleness !== undefined && tile("mean staleness, updates", shown(now.staleness), now.predicted_staleness === null ? "" : `theory: ${shown(now.predicted_staleness)}`),
      now.counts && tile("updates refused", shown(now.counts.refused), `${shown(now.counts.late)} came late`),
    ].filter(Boolean);
    $("tiles").replaceChildren(...(now.state === "finished" && now.kind !== "deploy" ? [] : tiles));
    $("timeline-hint").textContent = now.kind === "deploy" ? "as measured, from the first updates on" : `simulated: the ${now.state === "finished" ? "pick" : "best so far"}, and uniform routing with as many tasks in flight`;
    drawCurves(now.curves);
    table("strategies", ["strategy", "runs done", now.strategies.length ? now.strategies[0].measure : "", "staleness, updates"],
      (now.kind === "deploy" && now.strategies.length < 2 ? [] : now.strategies).map((s) => [element("span", {}, sample(s.ink), s.name), `${s.ended} of ${s.runs}`, s.value, shown(s.staleness)]));
    table("pilots", ["strategy", "learning rate", now.pilots.length ? `held-out ${now.pilots[0].measure}` : ""], now.pilots.map((p) => [p.name, shown(p.learning_rate), p.value]));
    const race = now.race || { rungs: [], rows: [] };
    $("race-hint").textContent = now.race ? `the best learning rate of every strategy; a rung is a part of the run, scored by ${race.scored_by} on held-out data, smaller is better, – where it was stopped; ${race.ran.join(", ")} candidates ran, ${race.gradients.toLocaleString("en")} gradients in all` : "";
    table("race", ["strategy", "learning rate", ...race.rungs.map((f) => (f < 1 ? `to 1/${shown(1 / f)} of the run` : "to the end"))], race.rows.map((r) => [r.name, shown(r.learning_rate), ...r.scores.map((s) => shown(s))]));
    const planned = now.clients.some((c) => c.planned !== null);
    table("clients", ["client", "status", "queue", "updates used", "refused", "speed", ...(planned ? ["planned", "of plan"] : []), "staleness", "theory", "norm", "agreement", "of largest speed"],
      now.clients.map((c) => [c.name, element("span", {}, element("i", { class: `dotted ${c.status === "alive" ? "on" : "off"}` }), c.status), c.waiting, c.used, c.refused, shown(c.rate),
        ...(planned ? [shown(c.planned), c.against_plan === null ? "–" : percent(c.against_plan)] : []), shown(c.staleness), shown(c.predicted),
        shown(c.norm), shown(c.agreement), c.speed === null ? "–" : percent(c.speed)]));
    $("events-card").hidden = !now.events.length;
    $("events").textContent = now.events.map((line) => line.replaceAll("\t", "  ")).join("\n");
  }
  /* Asked for beside the looks, which go on: a large fleet takes seconds to simulate. */
  async function drawTimeline(now) {
    if (drawing || now.timeline === drawn) return;
    drawing = true;
    const found = await ask("timeline").catch(() => null);
    drawing = false;
    if (!found) return; /* the next look says what is wrong */
    drawn = found.of;
    $("timeline").innerHTML = found.svg;
    const shown = Boolean(found.svg), before = $("timeline-card").hidden;
    $("timeline-card").hidden = !shown;
    if (before === shown) drawCurves(latest.curves);
  }
  function drawCurves(found) {
    $("curves-card").hidden = !found.runs.length;
    if (!found.runs.length) return;
    $("primary").textContent = found.measure.replace("test ", "");
    const value = metric === "value", real = found.clock === "real";
    const share = value && found.percent;
    $("curves-hint").textContent = found.hint;
    const firsts = new Set(found.runs.map((run) => run.strategy));
    const labels = new Map();
    found.runs.forEach((run, k) => { if (run.label) labels.set(run.label, k); });
    curves($("curves"), {
      series: found.runs.map((run, k) => {
        const alone = found.runs.filter((other) => other.strategy === run.strategy).length === 1;
        return { name: run.name, group: run.strategy, label: labels.get(run.label) === k ? run.label : null, bare: !alone, x: run.time, y: value ? run.value : run.loss, ink: run.ink, faint: run.faint, pick: run.pick };
      }),
      xLabel: real ? "time (seconds)" : "time (virtual units)", yLabel: value ? found.measure : "test loss", asPercent: share, low: 0, high: share ? 1 : undefined,
      words: `${value ? found.measure : "Test loss"} over time of ${[...firsts].join(", ")}`,
    });
  }
  for (const button of document.querySelectorAll("[data-metric]")) {
    button.addEventListener("click", () => {
      metric = button.dataset.metric;
      for (const other of document.querySelectorAll("[data-metric]")) other.setAttribute("aria-pressed", String(other === button));
      if (latest) drawCurves(latest.curves);
    });
  }
  async function look() {
    try {
      const found = await ask("look");
      const text = JSON.stringify({ ...found, age: null });
      $("problem").hidden = true;
      if (text !== last || found.state !== "finished") draw(found);
      latest = found; last = text;
      drawTimeline(found);
      document.body.dataset.state = found.state;
      document.body.dataset.ready = "true";
    } catch (error) {
      $("problem").hidden = false;
      $("problem").textContent = error.message;
    }
    setTimeout(look, document.hidden ? 5000 : 1000);
  }
  $("about").textContent = known.folder;
  look();
  let resized = null;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => { if (latest) drawCurves(latest.curves); }, 120); });
})();
