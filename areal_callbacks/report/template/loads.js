// Expert loads: the imbalance of every layer over the steps, and the counts of every expert in the kept snapshots.

const layerPrefix = (stack, layer) => ["moe_balance", stack, `layer_${layer}`].filter(Boolean).join("/");

/** Per bucket of steps: its first step and one value of every layer, the largest (NaN where there is none). */
function imbalance(run, stack) {
  const { buckets, exports } = run;
  const starts = Array.from({ length: buckets }, (_, b) => Math.floor((b * exports) / buckets));
  const bucketOf = new Uint32Array(exports);
  starts.forEach((start, b) => bucketOf.fill(b, start));
  const rows = stack.layers.map((layer) => {
    const row = new Float64Array(buckets).fill(NaN);
    const series = run.series(`${layerPrefix(stack.stack, layer)}/max_over_ideal`) ?? { at: [], y: [] };
    series.at.forEach((index, k) => {
      const b = bucketOf[index];
      if (!(row[b] >= series.y[k])) row[b] = series.y[k];
    });
    return row;
  });
  const used = starts.map((_, b) => b).filter((b) => rows.some((row) => !Number.isNaN(row[b])));
  return {
    firsts: used.map((b) => starts[b]),
    steps: used.map((b) => run.steps[starts[b]]),
    lastSteps: used.map((b) => run.steps[(starts[b + 1] ?? exports) - 1]),
    rows: rows.map((row) => Float64Array.from(used, (b) => row[b])),
  };
}

/** The expert loads of one stack in all kept snapshots. */
class Loads {
  static async load(data, stack, index, shared) {
    const { counts, totals, peaks } = data.snapshots;
    const [bytes, ...texts] = await Promise.all([unpack(counts[index]), unpackText(totals[index]), unpackText(peaks[index])]);
    return new Loads(data, stack, bytes, texts.map((text) => text.split("\n").map(parseList)), shared);
  }

  constructor(data, stack, bytes, [totals, peaks], { logStep, absent }) {
    Object.assign(this, stack, { steps: data.snapshots.steps, totals, peaks, logStep, absent });
    this.offsets = [0];
    for (const experts of stack.experts) this.offsets.push(this.offsets.at(-1) + experts);
    this.size = this.offsets.at(-1);
    this.width = Math.max(...stack.experts);
    this.codes = this.#decode(bytes);
  }

  #decode(bytes) {
    const length = bytes.length / 2;
    const codes = new Uint16Array(length);
    for (let i = 0; i < length; i++) {
      const folded = bytes[i] | (bytes[length + i] << 8);
      const difference = folded & 1 ? -((folded + 1) >> 1) : folded >> 1;
      codes[i] = difference + (i < this.size ? 0 : codes[i - this.size]);
    }
    return codes;
  }

  /** Routed assignments, within 0.1 %; the largest of a layer is exact. NaN where the layer or the expert is not there. */
  count(snapshot, row, expert) {
    if (expert >= this.experts[row]) return NaN;
    const code = this.codes[snapshot * this.size + this.offsets[row] + expert];
    if (code === this.absent) return NaN;
    if (code === 0) return 0;
    const count = Math.round(Math.exp((code - 1) * this.logStep));
    const peak = this.peaks[snapshot][row];
    return Math.round(Math.log(peak) / this.logStep) === code - 1 ? peak : count;
  }

  /** Load over the ideal load sum(c) / E; 0 in a layer that routed nothing. */
  ratio(snapshot, row, expert) {
    const total = this.totals[snapshot][row];
    const count = this.count(snapshot, row, expert);
    return total > 0 ? (count * this.experts[row]) / total : count;
  }

  /** The busiest expert's load over the ideal load. */
  peak(snapshot, row) {
    const total = this.totals[snapshot][row];
    return total > 0 ? (this.peaks[snapshot][row] * this.experts[row]) / total : 0;
  }

  /** Of one layer, by expert. */
  counts(snapshot, row) {
    return Array.from({ length: this.experts[row] }, (_, expert) => this.count(snapshot, row, expert));
  }
}
