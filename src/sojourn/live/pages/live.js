"use strict";
const known = JSON.parse(document.getElementById("known").textContent);
const token = new URLSearchParams(location.search).get("token") || "";
const $ = (id) => document.getElementById(id);

async function ask(name, question) {
  let reply;
  try {
    reply = await fetch(`/api/${name}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Sojourn-Token": token },
      body: JSON.stringify(question || {}),
    });
  } catch (error) {
    throw new Error("The command that serves this page has ended: start it again.");
  }
  const found = await reply.json();
  if (!reply.ok) throw new Error(found.error);
  return found;
}

/* As sojourn._support.numbers.number writes it in tables, sentences and pages. */
function shown(value, digits) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const rounded = Number(value.toPrecision(digits || 3)), size = Math.abs(rounded);
  if (size >= 1e9 || size < 1e-4) {
    const [mantissa, power] = rounded.toExponential().split("e");
    return `${mantissa}e${Number(power)}`;
  }
  return rounded.toLocaleString("en", { maximumSignificantDigits: digits || 3 });
}
const percent = (value, digits) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits || 0)}%`);

function element(tag, attributes, ...children) {
  const svg = ["svg", "g", "path", "rect", "circle", "text", "title", "line"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) made.append(child);
  return made;
}

const system = window.matchMedia("(prefers-color-scheme: dark)");
function paint() {
  const chosen = document.documentElement.dataset.theme;
  document.documentElement.classList.toggle("dark", chosen ? chosen === "dark" : system.matches);
}
try {
  const kept = localStorage.getItem("sojourn-theme");
  if (kept) document.documentElement.dataset.theme = kept;
} catch (error) { /* storage is off */ }
paint();
system.addEventListener("change", paint);
$("theme").addEventListener("click", () => {
  const dark = document.documentElement.classList.contains("dark");
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("sojourn-theme", document.documentElement.dataset.theme); } catch (error) { /* not kept */ }
  paint();
});

const DASHES = { solid: "", dash: "8 4", dot: "2 3", dashdot: "8 3 2 3", longdash: "13 4", longdashdot: "13 3 2 3" };
function sample(ink) {
  return element("svg", { viewBox: "0 0 32 12", width: 32, height: 12, class: "chart", "aria-hidden": "true" , style: "width:32px" },
    element("path", { class: "curve", d: "M1 6h30", "stroke-dasharray": DASHES[ink.dash], style: `--light:${ink.light};--dark:${ink.dark}` }));
}

function ticks(low, high, most) {
  const raw = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((size) => size >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

/* Curves over a common axis. series: {name, x, y, ink, faint, pick, label, bare}; their numbers are drawn as they came.
   A label stands at the end of its curve with the last number, or bare in the middle of the ends of its group. */
function curves(where, { series, xLabel, yLabel, high, low, xHigh, asPercent, words }) {
  const width = Math.max(300, where.clientWidth || 600), narrow = width < 520, tall = narrow ? 240 : 330;
  const said = series.filter((one) => one.label).map((one) => one.label.length + (one.bare ? 0 : 7));
  const left = 50, right = narrow ? 14 : Math.min(0.4 * width, 24 + 7.6 * Math.max(8, ...said)), top = 26, bottom = 42;
  const all = series.flatMap((one) => one.y.filter((y) => y !== null));
  const x1 = xHigh || Math.max(1e-12, ...series.flatMap((one) => one.x));
  const y0 = low !== undefined ? low : Math.min(0, ...all), y1 = high !== undefined ? high : Math.max(1e-12, ...all) * 1.04;
  const px = (x) => left + (x / x1) * (width - left - right);
  const py = (y) => top + (1 - (Math.min(y, y1) - y0) / (y1 - y0)) * (tall - top - bottom);
  const svg = element("svg", { class: "chart", viewBox: `0 0 ${width} ${tall}`, role: "img", "aria-label": words || yLabel });
  for (const y of ticks(y0, y1, 5)) {
    svg.append(element("path", { class: "grid", d: `M${left} ${py(y)}H${width - right}` }),
      element("text", { x: left - 7, y: py(y) + 4, "text-anchor": "end" }, asPercent ? `${Math.round(100 * y)}%` : shown(y)));
  }
  for (const x of ticks(0, x1, narrow ? 4 : 7)) svg.append(element("text", { x: px(x), y: tall - bottom + 17, "text-anchor": "middle" }, shown(x)));
  svg.append(element("text", { x: (left + width - right) / 2, y: tall - 6, "text-anchor": "middle" }, xLabel));
  const ends = [];
  for (const one of series) {
    const style = `--light:${one.ink.light};--dark:${one.ink.dark}`;
    const points = one.x.map((x, k) => [x, one.y[k]]).filter(([, y]) => y !== null);
    if (!points.length) continue;
    const d = points.map(([x, y], k) => `${k ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("");
    svg.append(element("path", { class: one.faint ? "curve faint" : one.pick ? "curve pick" : "curve", d, style, "stroke-dasharray": one.pick ? "" : DASHES[one.ink.dash] }));
    const [x, y] = points[points.length - 1];
    const text = asPercent ? percent(y, 1) : shown(y);
    svg.append(element("circle", { class: "dot", cx: px(x), cy: py(y), r: one.faint ? 2.5 : 3.6, style }, element("title", {}, `${one.name}: ${text} at ${shown(x)}`)));
    if (one.label) {
      const own = one.bare ? series.filter((other) => other.group === one.group).map((other) => py(other.y[other.y.length - 1])) : [py(y)];
      /* A name too long for the margin is cut; its point and the tables have it whole. */
      const letters = Math.floor((right - 10) / (one.pick ? 7.6 : 6.9)) - (one.bare ? 0 : text.length + 1);
      const name = one.label.length > letters ? `${one.label.slice(0, letters - 1)}…` : one.label;
      ends.push({ y: own.reduce((a, b) => a + b) / own.length, text: one.bare ? name : `${name} ${text}`, kind: one.faint ? "end faint" : one.pick ? "end pick" : "end", style });
    }
  }
  if (!narrow) {
    ends.sort((a, b) => a.y - b.y);
    ends.forEach((end, k) => { end.at = k ? Math.max(end.y, ends[k - 1].at + 15) : end.y; });
    for (const end of ends) svg.append(element("text", { x: width - right + 8, y: end.at + 4, class: end.kind, style: end.style }, end.text));
  }
  svg.append(element("text", { x: 2, y: 12, class: "ylabel" }, yLabel));
  where.replaceChildren(svg);
}
