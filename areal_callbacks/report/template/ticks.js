// Labels of axes: as many digits as the distance of two ticks needs, never fewer.

/** Decimals with which every multiple of `step` is exact. */
function decimalsFor(step) {
  for (let digits = 0; digits < 9; digits++) {
    const whole = step * 10 ** digits;
    if (Math.abs(whole - Math.round(whole)) < 1e-6 * whole) return digits;
  }
  return 9;
}

const fixed = (value, step) => (value === 0 ? "0" : grouped(value, decimalsFor(step)).replace("-", "−"));

const distance = (splits) => Math.abs((splits[1] ?? splits[0]) - splits[0]) || 1;
const topOf = (splits) => Math.max(...splits.map(Math.abs));

/** All labels of an axis in one unit, chosen by its largest value; `gap` stands between number and unit. */
function inUnits(units, gap) {
  return (splits) => {
    const [factor, unit] = unitFor(topOf(splits) / 2, units);
    return splits.map((value) => (value === 0 ? "0" : `${fixed(value / factor, distance(splits) / factor)}${gap}${unit}`));
  };
}

const secondsLabels = inUnits(TIMES, " ");
const scaledLabels = inUnits([...PREFIXES, [1, ""]], "");
const percentLabels = (splits) => splits.map((value) => `${fixed(100 * value, 100 * distance(splits))} %`);

function plainLabels(splits) {
  if (topOf(splits) >= 1e4) return scaledLabels(splits);
  if (distance(splits) < 1e-6) return splits.map((value) => (value === 0 ? "0" : value.toExponential(1)));
  return splits.map((value) => fixed(value, distance(splits)));
}

/** Labels of a linear axis for the values of a key. */
function axisLabels(key) {
  if (FRACTION.test(key)) return percentLabels;
  return SECONDS.test(key) ? secondsLabels : plainLabels;
}

/** Distances of ticks that people count in: seconds are not decimal above a minute. */
const TIME_DISTANCES = [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1].flatMap((unit) => [unit, 2 * unit, 5 * unit])
  .concat([1, 2, 5, 10, 15, 30], [1, 2, 5, 10, 15, 30].map((minutes) => 60 * minutes), [1, 2, 3, 6, 12, 24, 48, 120, 240, 720].map((hours) => 3600 * hours));
const HOUR_DISTANCES = TIME_DISTANCES.filter((seconds) => seconds >= 1).map((seconds) => seconds / 3600);

/** A decade of a logarithmic axis, never "0". */
function decade(value, key = "") {
  if (FRACTION.test(key)) return percent(value);
  const exponent = Math.round(Math.log10(value));
  if (exponent >= -3 && exponent <= 4) return exponent < 0 ? value.toFixed(-exponent) : grouped(value);
  const digits = String(Math.abs(exponent)).replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
  return `10${exponent < 0 ? "⁻" : ""}${digits}`;
}

/** The indices of values that get a label: multiples of a round number, at least `spacing` pixels apart. */
function tickIndices(values, length, spacing, least = 1) {
  if (values.length === 0) return [];
  const range = Math.abs(values.at(-1) - values[0]) || 1;
  const wanted = (range * spacing) / Math.max(1, length);
  const power = 10 ** Math.floor(Math.log10(wanted));
  const interval = Math.max(least, [1, 2, 5, 10].map((factor) => factor * power).find((round) => round >= wanted));
  const indices = [];
  let previous = null;
  values.forEach((value, index) => {
    const multiple = Math.floor(value / interval + 1e-9);
    const onOne = Math.abs(value / interval - multiple) < 1e-9;
    if ((previous === null && onOne) || (previous !== null && multiple !== previous)) indices.push(index);
    previous = multiple;
  });
  return indices;
}
