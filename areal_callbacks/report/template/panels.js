// The charts that every run gets, as far as it has the numbers.

const TRAIN_INFER = /(^|.*\/)train_infer\//;
const VERSIONS = /(^|.*\/)version_stats\//;
const leaf = (key) => key.split("/").at(-1);

/**
 * title, note, the options of the chart, and keys(all keys) → [{key, label, colour, …}]. `main`: coloured by run where
 * several are compared; `single`: left out there.
 */
const PANELS = [
  {
    title: "Throughput",
    note: "logical tokens per second of training, all ranks",
    options: { zero: true, key: "train_perf/tokens_per_second" },
    keys: () => [
      { key: "train_perf/tokens_per_second", label: "tokens/s", main: true },
      { key: "train_perf/cumulative_tokens_per_second", label: "over the whole run", colour: "series-8", width: 1, single: true },
    ],
  },
  {
    title: "Estimated FLOP/s",
    note: "model FLOPs, forward and backward, all ranks",
    options: { zero: true, key: "train_perf/estimated_flops_per_second" },
    keys: () => [
      { key: "train_perf/estimated_flops_per_second", label: "FLOP/s", main: true },
      { key: "train_perf/cumulative_estimated_flops_per_second", label: "over the whole run", colour: "series-8", width: 1, single: true },
      { key: "train_perf/mfu", label: "MFU", colour: "series-1", hidden: true, single: true },
    ],
  },
  {
    title: "Timing",
    note: "seconds per export; the optimizer is a part of training, timeperf/… as recorded",
    options: { zero: true, key: "train_perf/seconds" },
    keys: (all) => [
      { key: "train_perf/seconds", label: "training", fill: "area-1", colour: "series-1" },
      { key: "train_perf/seconds_mean", label: "mean over ranks", width: 1, colour: "series-8", single: true },
      { key: "timeperf/optimizer_step", label: "optimizer", fill: "area-2", value: optimizerSeconds },
      ...all
        .filter((key) => key.startsWith("timeperf/") && key !== "timeperf/optimizer_step")
        .map((key) => ({ key, label: key.slice("timeperf/".length) })),
    ],
  },
  {
    title: "Train/infer tails",
    note: "tokens whose probability ratio lies outside 1/k … k, log scale",
    options: { log: true },
    keys: (all) =>
      all
        .filter((key) => TRAIN_INFER.test(key) && /ratio_outside_[\d.]+$/.test(key))
        .map((key) => ({ key, k: Number(key.match(/[\d.]+$/)[0]) }))
        .sort((a, b) => a.k - b.k)
        .map(({ key, k }, index) => ({ key, label: `k = ${k}`, colour: `tail-${Math.min(5, index + 1)}` })),
  },
  {
    title: "Train/infer divergence",
    note: "trainer against rollout log-probabilities of the same tokens",
    options: { key: "" },
    keys: (all) =>
      ["kl_k1", "kl_k2", "kl_k3", "nonfinite_logp_fraction"]
        .flatMap((name) => all.filter((key) => TRAIN_INFER.test(key) && leaf(key) === name))
        .map((key) => ({ key, label: leaf(key).replace("kl_", "KL ").replace(/_/g, " "), hidden: key.endsWith("fraction"), single: key.endsWith("fraction") })),
  },
  {
    title: "Absolute log-probability gap",
    note: "|log p trainer − log p rollout|, mean over tokens",
    options: { zero: true, key: "" },
    keys: (all) =>
      all.filter((key) => /train_infer\/logp_abs_diff\/avg$/.test(key)).map((key) => ({ key, label: "mean", main: true })),
  },
  {
    title: "Staleness",
    note: "versions behind the last published checkpoint, per token",
    options: { zero: true, key: "" },
    keys: (all) =>
      ["theta_avg", "theta_min", "theta_max", "proximal_avg", "proximal_min", "proximal_max"]
        .flatMap((name) => all.filter((key) => VERSIONS.test(key) && leaf(key) === `sample_staleness_${name}`))
        .map((key) => stalenessLine(key)),
  },
  {
    title: "Stale and future tokens",
    note: "fraction of the generated tokens",
    options: { zero: true, key: "stale_token_fraction" },
    keys: (all) =>
      ["stale_token_fraction", "future_token_fraction"]
        .flatMap((name) => all.filter((key) => VERSIONS.test(key) && leaf(key) === name))
        .map((key) => ({ key, label: leaf(key).split("_")[0] })),
  },
];

function stalenessLine(key) {
  const [, policy, statistic] = leaf(key).match(/sample_staleness_(theta|proximal)_(\w+)/);
  const colour = policy === "theta" ? "series-1" : "series-2";
  return { key, label: `${policy} ${statistic}`, colour, width: statistic === "avg" ? 1.8 : 1, dash: statistic === "avg" ? undefined : [2, 3], single: statistic !== "avg" };
}

/** Seconds per step times steps: comparable with the seconds of training. */
function optimizerSeconds(run) {
  const perStep = run.series("timeperf/optimizer_step");
  const steps = run.series("train_perf/optimizer_steps");
  if (!steps) return perStep;
  let index = 0;
  const y = perStep.y.map((seconds, k) => {
    while (index + 1 < steps.at.length && steps.at[index + 1] <= perStep.at[k]) index += 1;
    return seconds * steps.y[index];
  });
  return { ...perStep, y };
}

function panelLines(panel, runs, allKeys) {
  const several = runs.length > 1;
  const entries = panel.keys(allKeys).filter(({ key, single }) => runs.some((run) => run.has(key)) && !(single && several));
  if (entries.every((entry) => entry.hidden)) return [];
  return entries.flatMap((entry, index) => {
    const present = runs.filter((run) => run.has(entry.key));
    return present.map((run, nth) => ({
      ...entry,
      ...(entry.value?.(run) ?? run.series(entry.key)),
      label: lineLabel(entry, run, nth, several),
      colour: lineColour(entry, index, run, runs),
      fill: several ? undefined : entry.fill,
      dash: several ? runDash(run) : entry.dash,
    }));
  });
}

/** Of several runs the first one's entry names the key, and the others follow it with their own dashes. */
function lineLabel(entry, run, nth, several) {
  if (!several) return entry.label;
  if (entry.main) return run.name;
  return nth === 0 ? entry.label : "\u00a0";
}

function lineColour(entry, index, run, runs) {
  if (entry.main && runs.length > 1) return runColour(run);
  return entry.colour ?? `series-${(index % 8) + 1}`;
}

/** Cards with their charts, made once the cards are in the page and have a width. */
function addPanels(grid, runs) {
  const allKeys = [...new Set(runs.flatMap((run) => [...run.lines.keys()]))].sort();
  for (const panel of PANELS) {
    const lines = panelLines(panel, runs, allKeys);
    if (lines.length === 0) continue;
    const host = element("div", { className: "chart", "aria-label": `${panel.title}: arrow keys move through the steps` });
    grid.append(card(panel.title, panel.note, host));
    new StepChart(host, lines, { ...panel.options, key: panel.options.key ?? lines[0].key });
  }
}
