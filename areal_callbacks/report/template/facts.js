// What a run is: its steps, its experts, when and how long; its configuration.

function stepSpan(steps) {
  if (!steps.length) return "nothing recorded";
  const [first, last] = [grouped(steps[0]), grouped(steps.at(-1))];
  return steps.length === 1 ? `step ${first}` : `steps ${first}–${last}`;
}

function stackShape({ stack, layers, experts }) {
  const [least, most] = [Math.min(...experts), Math.max(...experts)];
  const name = stack ? `${stack}: ` : "";
  return `${name}${numbered(layers.length, "layer")} × ${least === most ? numbered(most, "expert") : `${least}–${most} experts`}`;
}

function runFacts(run) {
  const seconds = run.ended - run.started;
  return [
    stepSpan(run.steps),
    ...run.stacks.map(stackShape),
    run.started ? new Date(1000 * run.started).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }) : null,
    run.started && run.ended && seconds > 0 ? duration(seconds) : null,
    run.resumedAt.length ? `resumed at step ${run.resumedAt.map((step) => grouped(step)).join(", ")}` : null,
  ].filter(Boolean);
}

function configurationRows(value, path = "") {
  if (value !== null && typeof value === "object" && Object.keys(value).length > 0)
    return Object.entries(value).flatMap(([key, inner]) => configurationRows(inner, path ? `${path}.${key}` : key));
  return [element("tr", {}, element("th", { scope: "row" }, path), element("td", {}, typeof value === "string" ? value : JSON.stringify(value)))];
}

function configuration(runs) {
  const tables = runs
    .filter((run) => Object.keys(run.config).length > 0)
    .flatMap((run) => [runs.length > 1 ? element("h4", {}, run.name) : null, element("table", { className: "config" }, element("tbody", {}, configurationRows(run.config)))]);
  if (tables.length === 0) return null;
  return element("details", { className: "card wide" }, element("summary", {}, "Configuration"), present(tables));
}

/** What is said at the top of the page in plain text, to be pasted into a message. */
function summaryText(runs) {
  return runs.map((run) => {
    const figures = FIGURES.map((figure) => [figure, figureOf(figure, run)]).filter(([, found]) => found);
    return [
      `${run.name}: ${runFacts(run).join(", ")}`,
      ...run.findings.map(({ severity, summary, step, advice }) => `- ${severity}: ${summary} (from step ${step}). ${advice}`),
      ...(run.findings.length === 0 ? ["- no findings"] : []),
      ...figures.map(([{ label }, found]) => `- ${label}: ${[found.format(found.y.at(-1)), sinceStart(found.key, found.y)].filter(Boolean).join(", ")}`),
    ].join("\n");
  }).join("\n\n") + "\n";
}
