// Numbers for people.

const oddNumber = (value) => (Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞");

const grouped = (value, digits = 0) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** Four significant digits; whole numbers keep theirs. */
function plain(value) {
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return grouped(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  return size >= 1000 ? grouped(value) : String(Number(value.toPrecision(4)));
}

const threeDigits = (value) => (Math.abs(value) >= 100 ? grouped(value) : String(Number(value.toPrecision(3))));

function scaled(value) {
  const size = Math.abs(value);
  for (const [factor, prefix] of [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= factor) return [threeDigits(value / factor), prefix];
  return [size >= 1e-3 || size === 0 ? threeDigits(value) : value.toExponential(1), ""];
}

const compact = (value) => scaled(value).join(" ").trim();
const withUnit = (unit) => (value) => {
  const [digits, prefix] = scaled(value);
  return `${digits} ${prefix}${unit}`;
};

function duration(value) {
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  for (const [factor, unit] of [[3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"]])
    if (size >= factor) return `${threeDigits(value / factor)} ${unit}`;
  return `${threeDigits(value * 1e6)} µs`;
}

function percent(value) {
  const size = Math.abs(100 * value);
  if (size !== 0 && size < 0.001) return `${(100 * value).toExponential(1)} %`;
  return `${Number((100 * value).toPrecision(3))} %`;
}

const times = (value) => `${value < 100 ? value.toFixed(2) : grouped(value)}×`;
const tokensPerSecond = (value) => `${value >= 100 ? grouped(value) : threeDigits(value)} tok/s`;

const SECONDS = /^timeperf\/|(^|[/_])seconds(_mean)?$/;
const FRACTION = /(fraction|mfu|ratio_outside_[\d.]+)$/;
const FORMATS = [
  [/tokens_per_second$/, tokensPerSecond],
  [/flops_per_second$/, withUnit("FLOP/s")],
  [/estimated_flops$/, withUnit("FLOP")],
  [SECONDS, duration],
  [FRACTION, percent],
  [/max_over_ideal(_max|_mean)?$/, (value) => value.toFixed(3)],
];

function formatFor(key) {
  const format = FORMATS.find(([pattern]) => pattern.test(key))?.[1] ?? plain;
  return (value) => (value === undefined ? "–" : Number.isFinite(value) ? format(value) : oddNumber(value));
}

/** Labels of a linear axis: shared scaling, no more digits than the distance of the ticks needs. */
function axisLabels(key) {
  const format = formatFor(key);
  return (_, splits) => {
    const top = Math.max(...splits.map(Math.abs));
    const step = Math.abs((splits[1] ?? splits[0]) - splits[0]) || 1;
    if (FRACTION.test(key)) return splits.map((v) => `${fixed(100 * v, 100 * step)} %`);
    if (SECONDS.test(key)) return splits.map((v) => (v === 0 ? "0" : format(v)));
    if (top >= 1e4) return splits.map((v) => (v === 0 ? "0" : scaled(v).join("")));
    if (top < 1e-3) return splits.map((v) => (v === 0 ? "0" : `${Number(v.toPrecision(3))}`));
    return splits.map((v) => fixed(v, step));
  };
}

const fixed = (value, step) =>
  value === 0 ? "0" : value.toFixed(Math.max(0, Math.min(8, Math.ceil(-Math.log10(step) - 1e-9))));

/** A decade of a logarithmic axis, never "0". */
function decade(value, key = "") {
  if (FRACTION.test(key)) return percent(value);
  const exponent = Math.round(Math.log10(value));
  if (exponent >= -3 && exponent <= 4) return exponent < 0 ? value.toFixed(-exponent) : grouped(value);
  const digits = String(Math.abs(exponent)).replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
  return `10${exponent < 0 ? "⁻" : ""}${digits}`;
}
