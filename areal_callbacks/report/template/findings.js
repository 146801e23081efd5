// What is wrong with the runs, on top of the page: each with its evidence, advice, and links to where it began.

const findingId = (run, finding) => `finding-${run.number}-${run.findings.indexOf(finding)}`;

function findingsStrip(runs) {
  const found = runs.flatMap((run) => run.findings.map((finding) => ({ run, finding })));
  if (found.length === 0) return healthyStrip(runs);
  const severe = found.filter(({ finding }) => finding.severity === "severe").length;
  const counts = [severe && `${severe} severe`, found.length - severe && numbered(found.length - severe, "warning")].filter(Boolean).join(", ");
  const items = found.map(({ run, finding }) => findingItem(run, finding, runs.length > 1));
  return section("Findings", element("p", { className: "note" }, counts), element("ul", { className: "findings" }, items));
}

function healthyStrip(runs) {
  const exports = runs.reduce((sum, run) => sum + run.exports, 0);
  if (exports === 0) return null;
  const text = `Nothing found: ${numbered(runs[0].rules, "rule")} over ${numbered(exports, "export")}.`;
  return section("Findings", element("p", { className: "healthy" }, text));
}

function findingItem(run, finding, named) {
  const { severity, summary, advice, rule } = finding;
  const evidence = Object.entries(finding.evidence).map(([name, value]) => element("span", {}, `${name.replaceAll("_", " ")} ${plainNumber(value)}`));
  const body = [
    element("span", { className: "badge" }, severity),
    element("div", { className: "what" },
      element("p", {}, named ? element("b", {}, `${run.name}: `) : null, element("b", {}, summary)),
      element("p", { className: "advice" }, advice),
      element("details", {}, element("summary", {}, "Evidence"), element("p", { className: "evidence" }, evidence, element("span", {}, `rule ${rule}`), element("span", {}, finding.docs)))),
    element("div", { className: "places" }, findingLinks(finding)),
  ];
  return element("li", { className: severity, id: findingId(run, finding), tabIndex: -1 }, body);
}

/** To the first step, in the layer if there is one, and to the series. */
function findingLinks({ step, last_step: lastStep, layer, key }) {
  const place = layer ? { step, layer: layer.layer, stack: layer.stack || null } : { step };
  const span = lastStep > step ? `steps ${grouped(step)}–${grouped(lastStep)}` : `step ${grouped(step)}`;
  const link = (text, chosen, part) => element("a", { href: addressOf({ ...view, ...chosen }), onclick: (event) => { event.preventDefault(); choose(chosen); showPart(part()); } }, text);
  return [
    link(layer ? `${span}, layer ${layer.layer}` : span, place, () => (layer ? document.querySelector(".balance .card") : chartOf(key))),
    link(key, { scalars: [key], step }, () => document.querySelector(".explorer")),
  ];
}

const plainNumber = (value) => (typeof value === "number" ? (Number.isFinite(value) ? plain(value) : oddNumber(value)) : String(value));

/** The chart of a panel that shows a key; otherwise the one of all scalars. */
function chartOf(key) {
  const chart = [...stepCharts].find(({ lines, host }) => !host.closest(".explorer") && lines.some((line) => line.key === key));
  return chart?.host.parentElement ?? document.querySelector(".explorer");
}

/** Scrolls to a part and gives it the focus. */
function showPart(part) {
  part?.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  part?.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
}
