/* Under every result of the search the place where its page has the words: Sphinx fetches pages for that, which files cannot. */
(function () {
  const AROUND = 110;
  const asked = (new URLSearchParams(location.search).get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);
  function excerpt(text) {
    const lower = text.toLowerCase();
    const places = asked.map((word) => lower.indexOf(word)).filter((place) => place >= 0);
    if (!places.length) return null;
    const begin = Math.max(0, Math.min(...places) - AROUND);
    const end = Math.min(text.length, begin + 2 * AROUND);
    return `${begin ? "… " : ""}${text.slice(begin, end).trim()}${end < text.length ? " …" : ""}`;
  }
  function add(item) {
    const link = item.querySelector("a");
    if (!link || item.querySelector(".context") || item.dataset.excerpt) return;
    item.dataset.excerpt = "sought";
    const page = link.getAttribute("href").split(/[?#]/)[0].replace(/\.html$/, "");
    const found = window.TEXTS && window.TEXTS[page] && excerpt(window.TEXTS[page]);
    if (!found) return;
    const shown = document.createElement("p");
    shown.className = "context";
    shown.textContent = found;
    item.append(shown);
  }
  document.addEventListener("DOMContentLoaded", () => {
    const results = document.getElementById("search-results");
    if (!results || location.protocol !== "file:") return;
    new MutationObserver(() => results.querySelectorAll("li").forEach(add)).observe(results, { childList: true, subtree: true });
  });
})();
