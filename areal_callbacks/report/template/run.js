// One run: its scalars, decoded when they are asked for, over its steps, tokens or hours.

const TOTAL_TOKENS = "train_perf/total_tokens";

class Run {
  static async load(data, number, shared) {
    const lines = (await unpackText(data.scalars)).split("\n");
    const run = new Run(data, number, lines);
    run.loads = Promise.all(data.stacks.map((stack, index) => Loads.load(data, stack, index, shared)));
    return run;
  }

  constructor(data, number, lines) {
    Object.assign(this, data, { number, steps: runningSums(lines[0]), clock: decodeSeries(...lines[1].split("\t")) });
    this.lines = new Map();
    for (const line of lines.slice(2)) {
      const [key, indices, values] = line.split("\t");
      this.lines.set(key, { indices, values });
    }
    this.decoded = new Map();
    this.places = new Map();
  }

  has(key) {
    return this.lines.has(key);
  }

  /** {at: indices of steps, y: values}, or null if the run has no such key. */
  series(key) {
    if (!this.has(key)) return null;
    if (!this.decoded.has(key)) {
      const { indices, values } = this.lines.get(key);
      this.decoded.set(key, decodeSeries(indices, values));
    }
    return this.decoded.get(key);
  }

  last(key) {
    return this.series(key)?.y.at(-1);
  }

  /** Where every step lies on an axis, "step", "tokens" or "hours"; null if the run does not know. */
  along(axis) {
    if (axis === "step") return this.steps;
    if (!this.places.has(axis)) this.places.set(axis, axis === "tokens" ? this.#tokens() : this.#hours());
    return this.places.get(axis);
  }

  /** The index of the step that is nearest to a place on an axis. */
  nearest(place, axis = "step") {
    return nearestIndex(this.along(axis) ?? this.steps, place);
  }

  #tokens() {
    const series = this.series(TOTAL_TOKENS);
    return series?.at.length ? placeLinearly(series.at, neverFalling(series.y), this.exports) : null;
  }

  #hours() {
    const { at, y } = this.clock;
    return at.length ? placeLinearly(at, neverFalling(y).map((seconds) => seconds / 3600), this.exports) : null;
  }
}

/** Totals that begin again where a run was resumed go on from where they were. */
function neverFalling(values) {
  let [offset, previous] = [0, 0];
  return values.map((value) => {
    if (value < previous) offset += previous;
    previous = value;
    return offset + value;
  });
}

/** Values at all indices below `count`, from those at some, on straight lines. */
function placeLinearly(at, values, count) {
  let k = 0;
  return Float64Array.from({ length: count }, (_, index) => {
    while (k + 1 < at.length && at[k + 1] <= index) k += 1;
    if (index <= at[k] || k + 1 === at.length) return values[k];
    return values[k] + ((values[k + 1] - values[k]) * (index - at[k])) / (at[k + 1] - at[k]);
  });
}

/** Of ascending values. */
function nearestIndex(values, wanted) {
  let [low, high] = [0, values.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low > 0 && wanted - values[low - 1] <= values[low] - wanted ? low - 1 : low;
}
