// The figures that matter at a glance, of which tiles and the comparison are made.

/**
 * label; keys: the first that a run has, or pattern: the first that matches; `value(run, key)`: the series, where it is not the
 * one of the key; note(run): a word below; about: the keys of findings that concern it.
 */
const FIGURES = [
  { label: "Loss", pattern: LOSS, about: LOSS },
  { label: "Reward", pattern: REWARD, about: REWARD },
  { label: "Throughput", pattern: /^train_perf\/tokens_per_second$/, about: /tokens_per_second|flops_per_second|goodput|slowest_rank|data_wait|seconds_m/ },
  { label: "Estimated FLOP/s", pattern: /^train_perf\/estimated_flops_per_second$/, note: (run) => noted(run, "train_perf/mfu", "MFU "), about: /flops_per_second|mfu/ },
  { label: "Time per optimizer step", pattern: /^train_perf\/seconds$/, value: perOptimizerStep, note: (run) => noted(run, "timeperf/optimizer_step", "optimizer "), about: /timeperf|skipped_steps/ },
  { label: "Tokens", pattern: /^train_perf\/total_tokens$/, format: compact, note: (run) => noted(run, "train_perf/total_seconds", "trained in ") },
  { label: "Worst max / ideal", pattern: /^moe_balance\/max_over_ideal_max$/, note: (run) => noted(run, "moe_balance/worst_layer", "layer "), about: /max_over_ideal/ },
  { label: "Dead experts", pattern: /^moe_balance\/dead_experts$/, note: expertTotal, about: /dead_experts/ },
  { label: "Starved experts", pattern: /^moe_balance\/starved_experts$/, note: expertTotal, about: /starved_experts/ },
  { label: "Train/infer KL k3", pattern: /(^|\/)train_infer\/kl_k3$/, note: (run) => noted(run, /(^|\/)train_infer\/ratio_outside_2$/, "", " outside 2×"), about: /train_infer/ },
  { label: "Staleness", pattern: /(^|\/)version_stats\/sample_staleness_theta_avg$/, note: () => "versions, mean", about: /version_stats/ },
  { label: "Device memory", pattern: /^device_memory\/peak_reserved_gib$/, note: () => "peak", about: /device_memory/ },
];

function noted(run, key, before, after = "") {
  const found = typeof key === "string" ? key : [...run.lines.keys()].find((name) => key.test(name));
  return found && run.has(found) ? before + formatFor(found)(run.last(found)) + after : "";
}

function expertTotal(run) {
  const total = run.stacks.flatMap((stack) => stack.experts).reduce((a, b) => a + b, 0);
  return total ? `of ${grouped(total)}` : "";
}

/** {key, at, y, format} of a figure in a run, or null; of several keys the one with the most values. */
function figureOf(figure, run) {
  const keys = keysOf([...run.lines.keys()], figure.pattern);
  const key = keys.reduce((best, other) => (best && run.series(best).y.length >= run.series(other).y.length ? best : other), null);
  if (key === null) return null;
  const form = figure.format;
  const format = form ? (value) => (Number.isFinite(value) ? form(value) : oddNumber(value)) : formatFor(key);
  return { key, format, ...(figure.value?.(run, key) ?? run.series(key)) };
}
