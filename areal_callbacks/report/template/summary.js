// What matters at a glance: tiles of one run, a table of several.

const FIGURES = [
  { label: "Tokens per second", key: "train_perf/cumulative_tokens_per_second", format: plain, sub: (run) => note(run, "train_perf/tokens_per_second", "last ") },
  { label: "Estimated FLOP/s", key: "train_perf/cumulative_estimated_flops_per_second", format: compact, sub: (run) => note(run, "train_perf/mfu", "last MFU ") },
  { label: "Tokens", key: "train_perf/total_tokens", format: compact, sub: (run) => note(run, "train_perf/total_seconds", "trained in ") },
  { label: "Optimizer step", key: "timeperf/optimizer_step", sub: () => "last export" },
  { label: "Worst max / ideal", key: "moe_balance/max_over_ideal_max", format: (value) => value.toFixed(2), sub: (run) => note(run, "moe_balance/worst_layer", "layer ") },
  { label: "Idle experts", key: "moe_balance/dead_experts", sub: (run) => expertTotal(run) },
  { label: "Loss", keys: ["loss", "train/loss", "train_loss"], sub: () => "last" },
  { label: "Train/infer KL, k3", pattern: /train_infer\/kl_k3$/, sub: (run) => tail(run) },
  { label: "Staleness", pattern: /sample_staleness_theta_avg$/, format: (value) => value.toFixed(2), sub: () => "versions, mean" },
];

const note = (run, key, before, after = "") => (run.has(key) ? before + formatFor(key)(run.last(key)) + after : "");
const tail = (run) => {
  const key = [...run.lines.keys()].find((name) => /train_infer\/ratio_outside_2$/.test(name));
  return key ? `${formatFor(key)(run.last(key))} outside 2×` : "";
};
const expertTotal = (run) => {
  const total = run.stacks.flatMap((stack) => stack.experts).reduce((a, b) => a + b, 0);
  return total ? `of ${grouped(total)}` : "";
};

function figureOf(figure, run) {
  const key = figure.key ?? figure.keys?.find((name) => run.has(name)) ?? [...run.lines.keys()].find((name) => figure.pattern?.test(name));
  if (!key || !run.has(key)) return null;
  const value = run.last(key);
  const text = figure.format && Number.isFinite(value) ? figure.format(value) : formatFor(key)(value);
  return { value, text };
}

function tiles(run) {
  const made = FIGURES.map((figure) => [figure, figureOf(figure, run)])
    .filter(([, found]) => found)
    .map(([figure, found]) =>
      element("div", { className: "tile" }, element("dt", {}, figure.label), element("dd", {}, found.text), element("dd", { className: "sub" }, figure.sub(run))),
    );
  return element("dl", { className: "tiles" }, made);
}

/** Differences are to the first run. */
function comparison(runs) {
  const rows = FIGURES.map((figure) => [figure, runs.map((run) => figureOf(figure, run))]).filter(([, found]) => found.some(Boolean));
  const cell = (found, first, k) => {
    if (!found) return element("td", {}, "–");
    const change = k > 0 && first && first.value ? found.value / first.value - 1 : NaN;
    const shown = Number.isFinite(change) && change !== 0 ? `${change < 0 ? "−" : "+"}${percent(Math.abs(change))}` : "";
    return element("td", {}, found.text, shown && element("span", { className: "change" }, shown));
  };
  const head = element("tr", {}, element("th", { scope: "col" }, "end of the run"), runs.map((run) => element("th", { scope: "col" }, runSwatch(run), run.name)));
  const body = rows.map(([figure, found]) => element("tr", {}, element("th", { scope: "row" }, figure.label), found.map((one, k) => cell(one, found[0], k))));
  return element("div", { className: "card wide scroll" }, element("table", { className: "comparison" }, element("thead", {}, head), element("tbody", {}, body)));
}

function runSwatch(run) {
  const swatch = element("i", { className: "swatch" });
  swatch.style.borderTop = `3px ${runDash(run).length ? "dashed" : "solid"} var(--${runColour(run)})`;
  return swatch;
}

function numbered(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

function stepRange(steps) {
  if (!steps.length) return "nothing recorded";
  const [first, last] = [grouped(steps[0]), grouped(steps.at(-1))];
  return steps.length === 1 ? `step ${first}` : `steps ${first}–${last}`;
}

function runFacts(run) {
  const { steps } = run;
  const shapes = run.stacks.map((stack) => {
    const [least, most] = [Math.min(...stack.experts), Math.max(...stack.experts)];
    const name = stack.stack ? `${stack.stack}: ` : "";
    return `${name}${numbered(stack.layers.length, "layer")} × ${least === most ? numbered(most, "expert") : `${least}–${most} experts`}`;
  });
  const seconds = run.ended - run.started;
  return [
    stepRange(steps),
    ...shapes,
    run.started ? new Date(1000 * run.started).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }) : null,
    run.started && run.ended && seconds > 0 ? duration(seconds) : null,
    run.resumedAt.length ? `resumed at step ${run.resumedAt.map((step) => grouped(step)).join(", ")}` : null,
  ].filter(Boolean);
}

function configuration(runs) {
  const rows = (value, path = "") =>
    value !== null && typeof value === "object" && Object.keys(value).length > 0
      ? Object.entries(value).flatMap(([key, inner]) => rows(inner, path ? `${path}.${key}` : key))
      : [element("tr", {}, element("th", { scope: "row" }, path), element("td", {}, typeof value === "string" ? value : JSON.stringify(value)))];
  const tables = runs
    .filter((run) => Object.keys(run.config).length > 0)
    .flatMap((run) => [runs.length > 1 ? element("h4", {}, run.name) : null, element("table", { className: "config" }, element("tbody", {}, rows(run.config)))]);
  if (tables.length === 0) return null;
  return element("details", { className: "card wide" }, element("summary", {}, "Configuration"), tables.filter(Boolean));
}
