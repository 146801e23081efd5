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

const PREFIXES = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const TIMES = [[3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]];

/** [factor, unit]: the largest of the units that a size reaches; the last one if it reaches none. */
const unitFor = (size, units, none = units.at(-1)) => units.find(([factor]) => size >= factor) ?? none;

function scaled(value) {
  const size = Math.abs(value);
  const [factor, prefix] = unitFor(size, PREFIXES, [1, ""]);
  if (factor > 1 || size >= 1e-3 || size === 0) return [threeDigits(value / factor), prefix];
  return [value.toExponential(1), ""];
}

const compact = (value) => scaled(value).join(" ").trim();
const withUnit = (unit) => (value) => {
  const [digits, prefix] = scaled(value);
  return `${digits} ${prefix}${unit}`;
};

function duration(value) {
  if (value === 0) return "0 s";
  const [factor, unit] = unitFor(Math.abs(value), TIMES);
  return `${threeDigits(value / factor)} ${unit}`;
}

function percent(value) {
  const size = Math.abs(100 * value);
  if (size !== 0 && size < 0.001) return `${(100 * value).toExponential(1)} %`;
  return `${Number((100 * value).toPrecision(3))} %`;
}

const times = (value) => `${value < 100 ? value.toFixed(2) : grouped(value)}×`;
const tokensPerSecond = (value) => `${value >= 100 ? grouped(value) : threeDigits(value)} tok/s`;

const SECONDS = /^timeperf\/|(^|[/_])seconds(_mean|_min)?$/;
const FRACTION = /(fraction|mfu|goodput|ratio_outside_[\d.]+|clip_ratio|no_eos_ratios)(\/(avg|min|max))?$/;
const FORMATS = [
  [/tokens_per_second(_per_device)?$/, tokensPerSecond],
  [/flops_per_second(_per_device)?$/, withUnit("FLOP/s")],
  [/estimated_flops$/, withUnit("FLOP")],
  [/_gib$/, (value) => `${threeDigits(value)} GiB`],
  [SECONDS, duration],
  [FRACTION, percent],
  [/max_over_ideal(_max|_mean|_p\d+)?$/, times],
];

const unitOf = (key) => FORMATS.find(([pattern]) => pattern.test(key))?.[1] ?? plain;

/** The one form of a key's values in tiles, legends, tips and tables. */
function formatFor(key) {
  const format = unitOf(key);
  return (value) => (value === undefined ? "–" : Number.isFinite(value) ? format(value) : oddNumber(value));
}

const numbered = (number, noun) => `${grouped(number)} ${noun}${number === 1 ? "" : "s"}`;
