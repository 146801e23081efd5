// Which way of a metric is the better one. What is not listed has none.

const HIGHER = /(tokens_per_second|flops_per_second)(_per_device)?$|(^|\/)(mfu|goodput)$|(^|[/_])(rewards?|accuracy|score)(\/(avg|mean))?$|(exact_match|ess)_fraction$|normalised_entropy$/;
const LOWER = /(^|[/_ ])(loss|perplexity)(\/avg)?$|^timeperf\/|(^|[/_])seconds(_mean|_min)?$|max_over_ideal(_\w+)?$|(dead|starved)_experts$|coefficient_of_variation$|train_infer\/(.*\/)?(kl_|ratio_outside|logp_abs_diff|nonfinite)|sample_staleness|(stale|future)_token_fraction$|skipped_steps$|_gib$|no_eos_ratios/;
const TOTAL = /(^|\/)total_/;

/** 1: more is better, −1: less is better, 0: neither. */
const directionOf = (key) => (TOTAL.test(key) ? 0 : HIGHER.test(key) ? 1 : LOWER.test(key) ? -1 : 0);

/** {text, word} of one series' end against another's, with a verdict where they differ by more than their noise; or null. */
function judgeChange(key, y, reference) {
  const [value, before] = [endValue(key, y), endValue(key, reference)];
  const text = before === 0 && value > 0 ? `+${formatFor(key)(value)}` : relativeChange(value, before);
  if (!text) return null;
  const noise = Math.max(endSpread(y), endSpread(reference));
  const good = Math.abs(value - before) > noise ? Math.sign(value - before) * directionOf(key) : 0;
  return { text, word: good > 0 ? "better" : good < 0 ? "worse" : "" };
}

/** "−26 %", "9.1×", or "" where they are equal or have no ratio. */
function relativeChange(value, reference) {
  const ratio = value / reference;
  if (!Number.isFinite(ratio) || value === reference) return "";
  if (ratio >= 2) return `${threeDigits(ratio)}×`;
  const share = Math.abs(value - reference) / Math.abs(reference);
  if (share < 0.0005) return "";
  return `${value < reference ? "−" : "+"}${Number((100 * share).toPrecision(2))} %`;
}

/** A change with its verdict, as words and in colour. */
function changeElement(judged) {
  if (!judged) return null;
  return element("span", { className: `change ${judged.word}` }, " ", judged.word ? `${judged.text} ${judged.word}` : judged.text);
}
