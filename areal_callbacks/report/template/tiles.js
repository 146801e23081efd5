// Tiles of one run: the last value, its course, its change since the start, and whether a finding is about it.

const SPARK = { width: 100, height: 22, points: 100 };

function tiles(run) {
  const made = FIGURES.map((figure) => tile(figure, run));
  return element("dl", { className: "tiles" }, made.filter(Boolean));
}

function tile(figure, run) {
  const found = figureOf(figure, run);
  if (!found) return null;
  const value = found.y.at(-1);
  const finding = run.findings.find(({ key }) => figure.about?.test(key));
  const sub = [figure.note?.(run), sinceStart(found.key, found.y)].filter(Boolean).join(" · ");
  return element(
    "div",
    { className: `tile ${finding?.severity ?? ""}`, title: found.key },
    element("dt", {}, figure.label, finding && findingBadge(run, finding)),
    element("dd", {}, found.format(value)),
    element("dd", { className: "spark", "aria-hidden": "true" }, sparkline(found.y)),
    element("dd", { className: "sub" }, sub),
  );
}

function findingBadge(run, finding) {
  const show = (event) => {
    event.preventDefault();
    document.getElementById(findingId(run, finding)).scrollIntoView({ block: "center" });
    document.getElementById(findingId(run, finding)).focus();
  };
  return element("a", { className: "badge", href: `#${findingId(run, finding)}`, onclick: show }, finding.severity);
}

/** A small line through the finite values, lowest at the bottom. */
function sparkline(y) {
  const values = thinnedTo(SPARK.points, y.filter(Number.isFinite));
  const [low, high] = values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
  const place = (value, k) => {
    const x = values.length > 1 ? (k * SPARK.width) / (values.length - 1) : SPARK.width;
    const height = high > low ? (value - low) / (high - low) : 0.5;
    return `${x.toFixed(1)},${(SPARK.height - 2 - height * (SPARK.height - 4)).toFixed(1)}`;
  };
  const line = svg("polyline", { points: values.map(place).join(" "), fill: "none", "vector-effect": "non-scaling-stroke" });
  return svg("svg", { viewBox: `0 0 ${SPARK.width} ${SPARK.height}`, preserveAspectRatio: "none" }, line);
}

/** Of each group of neighbours the value that lies farthest from the one before the group: no jump is lost. */
function thinnedTo(count, values) {
  if (values.length <= count) return values;
  let previous = values[0];
  return Array.from({ length: count }, (_, k) => {
    const group = values.slice(Math.floor((k * values.length) / count), Math.floor(((k + 1) * values.length) / count));
    previous = k === count - 1 ? values.at(-1) : group.reduce((best, value) => (Math.abs(value - previous) > Math.abs(best - previous) ? value : best));
    return previous;
  });
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
