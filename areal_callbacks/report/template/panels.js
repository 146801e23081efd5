// The charts that every run gets, as far as it has the numbers.

const keysOf = (all, pattern) => all.filter((key) => pattern.test(key));
const wholeKeys = (pattern) => (all) => keysOf(all, pattern).map((key) => ({ key, label: key }));
const matching = (pattern, label) => (all) => keysOf(all, pattern).map((key) => ({ key, label }));

const LOSS = /(^|[/_ ])loss(\/avg)?$/i;
const REWARD = /(^|\/)((?!kl_)\w+_)?rewards?(\/(avg|mean))?$|(^|\/)rewards\/[^/]+\/mean$/;
const GRADIENT_NORM = /(^|[/_])grad(ient)?_?norm(\/avg)?$/;
const TAIL = /(?:^|\/)train_infer\/ratio_outside_([\d.]+)$/;
const DIVERGENCE = /(?:^|\/)train_infer\/kl_(k\d)$/;
const STALENESS = /(?:^|\/)version_stats\/sample_staleness_(theta|proximal)_(avg|min|max)$/;

/**
 * title, note, the options of the chart, and keys(all keys) → [{key, label, colour, …}]. `single`: left out where several runs
 * are compared. `value(run)`: the series, where it is not the one of the key.
 */
const LEARNING = [
  { title: "Loss", note: "as the trainer logged it", keys: wholeKeys(LOSS) },
  { title: "Reward", note: "as it was recorded", keys: wholeKeys(REWARD) },
  { title: "Gradient norm", note: "as the trainer logged it", options: { zero: true }, keys: wholeKeys(GRADIENT_NORM) },
];

const SPEED = [
  {
    title: "Throughput",
    note: "logical tokens per second of training, all ranks",
    options: { zero: true },
    keys: () => [
      { key: "train_perf/tokens_per_second", label: "tokens/s" },
      { key: "train_perf/cumulative_tokens_per_second", label: "mean since the start", colour: "series-8", width: 1, single: true },
    ],
  },
  {
    title: "Estimated FLOP/s",
    note: "model FLOPs, forward and backward, all ranks",
    options: { zero: true },
    keys: () => [
      { key: "train_perf/estimated_flops_per_second", label: "FLOP/s" },
      { key: "train_perf/cumulative_estimated_flops_per_second", label: "mean since the start", colour: "series-8", width: 1, single: true },
    ],
  },
  { title: "MFU", note: "estimated FLOP/s over the devices’ peak", options: { zero: true }, keys: () => [{ key: "train_perf/mfu", label: "MFU" }] },
  {
    title: "Time per optimizer step",
    note: "slowest rank; timeperf/… as recorded",
    options: { zero: true, key: "train_perf/seconds" },
    keys: (all) => [
      { key: "train_perf/seconds", label: "training", fill: "area-1", colour: "series-1", value: (run) => perOptimizerStep(run, "train_perf/seconds") },
      { key: "train_perf/seconds_mean", label: "training, mean over ranks", width: 1, colour: "series-8", single: true, value: (run) => perOptimizerStep(run, "train_perf/seconds_mean") },
      { key: "timeperf/optimizer_step", label: "optimizer", fill: "area-2", colour: "series-2" },
      { key: "train_perf/data_wait_seconds", label: "waiting for data", colour: "series-4", value: (run) => perOptimizerStep(run, "train_perf/data_wait_seconds") },
      ...keysOf(all, /^timeperf\/(?!optimizer_step$)/).map((key) => ({ key, label: key.slice("timeperf/".length) })),
    ],
  },
  { title: "Goodput", note: "seconds of training over seconds that passed", options: { zero: true }, keys: () => [{ key: "train_perf/goodput", label: "goodput" }] },
  {
    title: "Device memory",
    note: "peak of the fullest device",
    options: { zero: true },
    keys: () => [
      { key: "device_memory/peak_allocated_gib", label: "allocated" },
      { key: "device_memory/peak_reserved_gib", label: "reserved" },
    ],
  },
];

const EXPERTS = [
  {
    title: "Starved and dead experts",
    note: "dead: not one assignment; over all layers",
    options: { zero: true },
    keys: () => [
      { key: "moe_balance/starved_experts", label: "starved", colour: "series-2" },
      { key: "moe_balance/dead_experts", label: "dead", colour: "series-4" },
    ],
  },
  {
    title: "Imbalance over the layers",
    note: "busiest expert’s load over the ideal load",
    options: { key: "max_over_ideal" },
    keys: () => [
      { key: "moe_balance/max_over_ideal_max", label: "worst layer", colour: "series-4" },
      { key: "moe_balance/max_over_ideal_p90", label: "90 % of the layers below", colour: "series-2", single: true },
      { key: "moe_balance/max_over_ideal_mean", label: "mean", colour: "series-1", single: true },
    ],
  },
];

const POLICY = [
  {
    title: "Train/infer tails",
    note: "tokens whose probability ratio lies outside 1/k … k, log scale",
    options: { log: true },
    keys: (all) =>
      keysOf(all, TAIL)
        .map((key) => ({ key, k: Number(key.match(TAIL)[1]) }))
        .sort((a, b) => a.k - b.k)
        .map(({ key, k }, index) => ({ key, label: `k = ${k}`, colour: `tail-${Math.min(5, index + 1)}` })),
  },
  {
    title: "Train/infer divergence",
    note: "trainer against rollout log-probabilities of the same tokens",
    keys: (all) => keysOf(all, DIVERGENCE).map((key) => ({ key, label: `KL ${key.match(DIVERGENCE)[1]}` })),
  },
  { title: "Absolute log-probability gap", note: "|log p trainer − log p rollout|, mean over tokens", options: { zero: true }, keys: matching(/(^|\/)train_infer\/logp_abs_diff\/avg$/, "mean") },
  {
    title: "Staleness",
    note: "versions behind the last published checkpoint, per token",
    options: { zero: true },
    keys: (all) => ["avg", "min", "max"].flatMap((statistic) => keysOf(all, STALENESS).filter((key) => key.endsWith(statistic)).map(stalenessEntry)),
  },
  {
    title: "Stale and future tokens",
    note: "fraction of the generated tokens",
    options: { zero: true },
    keys: (all) => ["stale", "future"].flatMap((word) => matching(new RegExp(`(^|/)version_stats/${word}_token_fraction$`), word)(all)),
  },
  { title: "Clipped and unused tokens", note: "fraction of the generated tokens", options: { zero: true }, keys: wholeKeys(/(^|\/)(clip_ratio(\/avg)?|advantage_zero_fraction)$/) },
  { title: "Lengths", note: "tokens of a sequence, mean", options: { zero: true }, keys: wholeKeys(/(^|\/)((seq|prompt)_len\/avg|completions\/mean_length)$/) },
];

function stalenessEntry(key) {
  const [, policy, statistic] = key.match(STALENESS);
  const mean = statistic === "avg";
  return { key, label: `${policy} ${statistic}`, colour: policy === "theta" ? "series-1" : "series-2", width: mean ? 1.8 : 1, dash: mean ? undefined : [2, 3], single: !mean };
}

/** Seconds of an export over its optimizer steps, comparable with timeperf/optimizer_step. */
function perOptimizerStep(run, key) {
  const seconds = run.series(key);
  const steps = run.series("train_perf/optimizer_steps");
  if (!steps) return seconds;
  let index = 0;
  const y = seconds.at.map((at, k) => {
    while (index + 1 < steps.at.length && steps.at[index + 1] <= at) index += 1;
    return seconds.y[k] / steps.y[index];
  });
  return { at: seconds.at, y };
}
