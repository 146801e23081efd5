// A run's beginning and end in one number each, which a single odd export does not move.

const TENTH = 10;
const WARM_UP = 3;

function medianOf(values) {
  const ordered = values.filter(Number.isFinite).sort((a, b) => a - b);
  return ordered.length ? ordered[ordered.length >> 1] : NaN;
}

/** The median of the last tenth of a series; of totals the last value. */
function endValue(key, y) {
  return TOTAL.test(key) ? y.at(-1) : medianOf(y.slice(-Math.ceil(y.length / TENTH)));
}

/** The distance of the quartiles of the last tenth. */
function endSpread(y) {
  const last = y.slice(-Math.ceil(y.length / TENTH)).filter(Number.isFinite).sort((a, b) => a - b);
  return last.length ? last[Math.floor((3 * last.length) / 4)] - last[Math.floor(last.length / 4)] : 0;
}

/** The median of the first tenth; of a series of twenty and more values without its first three, which are warm-up. */
function startValue(y) {
  const count = Math.ceil(y.length / TENTH);
  const first = y.length >= 20 ? WARM_UP : 0;
  return medianOf(y.slice(first, first + count));
}

/** "−26 % since start", or "" for short series. */
function sinceStart(key, y) {
  if (y.length < 4 || TOTAL.test(key)) return "";
  const [start, end] = [startValue(y), endValue(key, y)];
  if (start === 0 && end > 0) return `+${formatFor(key)(end)} since start`;
  const change = relativeChange(end, start);
  return change ? `${change} since start` : "";
}
