// The imbalance of every layer over the steps, one map a run, on a common colour scale.

const LIMITS = [1.25, 1.5, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512, 1024];
const HISTORY_NOTE = "busiest expert’s load over the ideal load; 1 is perfect balance. Click a cell to go there.";

/** Upper end of the colour scale: a round number that all but the worst half percent of the cells stay below. */
function heatLimit(maps) {
  const values = maps.flatMap((map) => map.rows.flatMap((row) => Array.from(row))).filter(Number.isFinite);
  values.sort((a, b) => a - b);
  const high = values[Math.floor(0.995 * (values.length - 1))] ?? 1;
  return LIMITS.find((limit) => limit >= high) ?? high;
}

/** The maps of one stack in some runs. `choice(run)` has selected(history) → {row, column} and pick(row, column, history). */
class LayerHistories {
  constructor(choice) {
    this.choice = choice;
    this.element = element("div");
    this.maps = [];
  }

  /** entries: [{run, stack: {stack, layers}}] */
  show(entries) {
    const histories = entries.map(({ run, stack }) => imbalance(run, stack));
    const layout = JSON.stringify(entries.map(({ run, stack }) => [run.number, stack]));
    this.limit = heatLimit(histories);
    if (layout !== this.layout) this.maps = entries.map((entry) => this.#makeMap(entry, entries.length));
    this.layout = layout;
    this.maps.forEach((map, k) => Object.assign(map, { run: entries[k].run, history: histories[k] }));
    const named = this.maps.flatMap((map) => (entries.length > 1 ? [element("h4", {}, map.run.name), map.element] : [map.element]));
    this.element.replaceChildren(...named, heatLegend(this.limit));
    this.draw();
  }

  draw() {
    this.maps.forEach((map) => map.draw());
  }

  mark() {
    this.maps.forEach((map) => map.mark());
  }

  #makeMap({ run, stack }, runs) {
    const map = new Heatmap({
      label: `Step by layer imbalance of ${run.name}. Arrow keys choose step and layer.`,
      rowTitle: "layer",
      columnTitle: () => `${AXES[axisOf([map.run])].title} →`,
      columnLabel: (value) => (axisOf([map.run]) === "step" ? grouped(value) : compact(value)),
      rows: stack.layers,
      columns: () => placesOf(map.run, map.history),
      height: mapHeight(stack.layers.length, runs > 1 ? 150 : 220, 12),
      value: (row, column) => map.history.rows[row][column],
      pixel: () => heatPixel(this.limit),
      describe: (row, column) => [`step ${stepRange(map.history, column)} · layer ${stack.layers[row]}`, `max / ideal ${formatFor("max_over_ideal")(map.history.rows[row][column])}`],
      selected: () => this.choice(map.run).selected(map.history),
      pick: (row, column) => this.choice(map.run).pick(row, column, map.history),
    });
    return map;
  }
}

const placesOf = (run, history) => history.firsts.map((index) => run.along(axisOf([run]))[index]);

const stepRange = ({ steps, lastSteps }, column) =>
  steps[column] === lastSteps[column] ? grouped(steps[column]) : `${grouped(steps[column])}–${grouped(lastSteps[column])}`;

function heatPixel(limit) {
  const table = pixels("heat");
  const scale = 255 / Math.log(limit);
  return (value) => table[Math.round(Math.max(0, Math.min(255, Math.log(value) * scale))) || 0];
}

const heatLegend = (limit) => scaleLegend("heat", ["1", `${Number(Math.sqrt(limit).toPrecision(2))}×`, `${limit}× and above`]);

const mapHeight = (rows, least, perRow) => Math.max(Math.min(least, rows * perRow * 2), Math.min(480, rows * 5), 36);

/** A colour map with words at its ends; painted by the style sheet, which follows the theme. */
function scaleLegend(map, labels, dead = false) {
  const bar = element("i", { className: `scale ${map}`, "data-map": map });
  const ends = element("span", { className: "ends" }, labels.map((label) => element("span", {}, label)));
  const nothing = dead ? element("span", { className: "dead" }, element("i"), "dead") : null;
  return element("div", { className: "legend" }, element("span", { className: "ramp" }, bar, ends), nothing);
}

/** [{stack, layers}] of a run whose layers have their scalars but no counts, as the names of the scalars tell them. */
function scalarStacks(run) {
  const stacks = new Map();
  for (const key of run.lines.keys()) {
    const found = key.match(/^moe_balance\/(?:(.+)\/)?layer_(\d+)\/max_over_ideal$/);
    if (found) stacks.set(found[1] ?? "", [...(stacks.get(found[1] ?? "") ?? []), Number(found[2])]);
  }
  return [...stacks].sort().map(([stack, layers]) => ({ stack, layers: layers.sort((a, b) => a - b) }));
}

/** Maps of the runs without counts, with nothing below them. */
class ScalarHistories {
  constructor() {
    this.element = element("div", { className: "stacked" });
    this.shown = new Map();
  }

  show(runs) {
    for (const run of runs.filter((one) => one.stacks.length === 0))
      for (const stack of scalarStacks(run)) this.#mapOf(run, stack, runs.length).show([{ run, stack }]);
  }

  #mapOf(run, stack, runs) {
    const key = JSON.stringify([run.number, stack]);
    if (!this.shown.has(key)) {
      const made = new LayerHistories(() => scalarChoice(stack.layers));
      const names = [runs > 1 ? run.name : "", stack.stack].filter(Boolean).join(" · ");
      this.element.append(card("Step × layer", HISTORY_NOTE, names ? element("h4", {}, names) : null, made.element));
      viewListeners.push((changed) => (changed.has("x") ? made.draw() : made.mark()));
      this.shown.set(key, made);
    }
    return this.shown.get(key);
  }
}

const scalarChoice = (layers) => ({
  selected: (history) => ({ row: layers.indexOf(view.layer), column: view.step === null ? -1 : nearestIndex(history.steps, view.step) }),
  pick: (row, column, history) => choose({ step: history.steps[column], layer: layers[row] }),
});
