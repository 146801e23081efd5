// The page's data, as the builder packed it, turned into numbers.

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function unpack(base64) {
  const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const unpackText = async (base64) => new TextDecoder().decode(await unpack(base64));

const WORDS = { n: NaN, i: Infinity, "-i": -Infinity };
const parseNumber = (text) => (text in WORDS ? WORDS[text] : Number(text));
const parseList = (text) => (text === "" ? [] : text.split(",").map(parseNumber));

function runningSums(text) {
  let sum = 0;
  return parseList(text).map((difference) => (sum += difference));
}

const layerPrefix = (stack, layer) => ["moe_balance", stack, `layer_${layer}`].filter(Boolean).join("/");

/** One run: scalars, decoded when they are asked for, and the kept expert loads of its stacks. */
class Run {
  static async load(data, number, shared) {
    const lines = (await unpackText(data.scalars)).split("\n");
    const run = new Run(data, number, lines);
    run.loads = Promise.all(data.stacks.map((stack, index) => Loads.load(data, stack, index, shared)));
    return run;
  }

  constructor(data, number, lines) {
    Object.assign(this, data, { number, steps: runningSums(lines[0]) });
    this.lines = new Map();
    for (const line of lines.slice(1)) {
      const [key, indices, values] = line.split("\t");
      this.lines.set(key, { indices, values });
    }
    this.decoded = new Map();
  }

  has(key) {
    return this.lines.has(key);
  }

  /** {at: indices of steps, x: steps, y: values}, or null if the run has no such key. */
  series(key) {
    if (!this.has(key)) return null;
    if (!this.decoded.has(key)) {
      const { indices, values } = this.lines.get(key);
      const y = parseList(values);
      const at = indices === "" ? y.map((_, index) => index) : runningSums(indices);
      this.decoded.set(key, { at, x: at.map((index) => this.steps[index]), y });
    }
    return this.decoded.get(key);
  }

  last(key) {
    return this.series(key)?.y.at(-1);
  }

  /** Per bucket of steps: its first step and one value of every layer, the largest (NaN where there is none). */
  imbalance(stack) {
    const { buckets } = this;
    const starts = Array.from({ length: buckets }, (_, b) => Math.floor((b * this.exports) / buckets));
    const bucketOf = new Uint32Array(this.exports);
    starts.forEach((start, b) => bucketOf.fill(b, start));
    const rows = stack.layers.map((layer) => {
      const row = new Float64Array(buckets).fill(NaN);
      const series = this.series(`${layerPrefix(stack.stack, layer)}/max_over_ideal`) ?? { at: [], y: [] };
      series.at.forEach((index, k) => {
        const b = bucketOf[index];
        if (!(row[b] >= series.y[k])) row[b] = series.y[k];
      });
      return row;
    });
    const used = starts.map((_, b) => b).filter((b) => rows.some((row) => !Number.isNaN(row[b])));
    return {
      steps: used.map((b) => this.steps[starts[b]]),
      lastSteps: used.map((b) => this.steps[(starts[b + 1] ?? this.exports) - 1]),
      rows: rows.map((row) => Float64Array.from(used, (b) => row[b])),
    };
  }
}

/** The expert loads of one stack in all kept snapshots. */
class Loads {
  static async load(data, stack, index, shared) {
    const [bytes, totals] = await Promise.all([
      unpack(data.snapshots.counts[index]),
      unpackText(data.snapshots.totals[index]),
    ]);
    return new Loads(data, stack, bytes, totals, shared);
  }

  constructor(data, stack, bytes, totals, { logStep, absent }) {
    Object.assign(this, stack, { steps: data.snapshots.steps, logStep, absent });
    this.offsets = [0];
    for (const experts of stack.experts) this.offsets.push(this.offsets.at(-1) + experts);
    this.size = this.offsets.at(-1);
    this.width = Math.max(...stack.experts);
    this.totals = totals.split("\n").map(parseList);
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

  /** Routed assignments, within 0.1 %; NaN where the layer or the expert is not there. */
  count(snapshot, row, expert) {
    if (expert >= this.experts[row]) return NaN;
    const code = this.codes[snapshot * this.size + this.offsets[row] + expert];
    if (code === this.absent) return NaN;
    return code === 0 ? 0 : Math.round(Math.exp((code - 1) * this.logStep));
  }

  /** Load over the ideal load sum(c) / E; 0 in a layer that routed nothing. */
  ratio(snapshot, row, expert) {
    const total = this.totals[snapshot][row];
    const count = this.count(snapshot, row, expert);
    return total > 0 ? (count * this.experts[row]) / total : count;
  }

  nearest(step) {
    let best = 0;
    this.steps.forEach((at, k) => {
      if (Math.abs(at - step) < Math.abs(this.steps[best] - step)) best = k;
    });
    return best;
  }
}
