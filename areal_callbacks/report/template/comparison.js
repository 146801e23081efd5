// A table of several runs: each figure at their ends, with the change to the first run and whether it is for the better.

function comparison(runs) {
  const rows = FIGURES.map((figure) => [figure, runs.map((run) => figureOf(figure, run))]).filter(([, found]) => found.some(Boolean));
  const head = element("tr", {}, element("th", { scope: "col" }, "median of the last tenth"), runs.map((run) => element("th", { scope: "col" }, runSwatch(run), run.name)));
  const body = rows.map(([figure, found]) => element("tr", {}, element("th", { scope: "row" }, figure.label), found.map((one, k) => comparisonCell(one, found[0], k))));
  return element("div", { className: "card wide scroll", tabIndex: 0, role: "region", "aria-label": "Comparison" }, element("table", { className: "comparison" }, element("thead", {}, head), element("tbody", {}, body)));
}

function comparisonCell(found, first, k) {
  if (!found) return element("td", {}, "–");
  const judged = k > 0 && first ? judgeChange(found.key, found.y, first.y) : null;
  return element("td", {}, found.format(endValue(found.key, found.y)), changeElement(judged));
}

function runSwatch(run) {
  const swatch = element("i", { className: "swatch" });
  swatch.style.borderTop = `3px solid var(--${runColour(run)})`;
  return swatch;
}
