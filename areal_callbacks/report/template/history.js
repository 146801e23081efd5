// The imbalance of every layer over the steps, and what all heatmaps share.

const LIMITS = [1.25, 1.5, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512, 1024];
const HISTORY_NOTE = "busiest expert’s load over the ideal load; 1 is perfect balance. Click a cell to go there.";

/** Upper end of the colour scale: a round number that all but the worst half percent of the cells stay below. */
function heatLimit(maps) {
  const values = maps.flatMap((map) => map.rows.flatMap((row) => Array.from(row))).filter(Number.isFinite);
  values.sort((a, b) => a - b);
  const high = values[Math.floor(0.995 * (values.length - 1))] ?? 1;
  return LIMITS.find((limit) => limit >= high) ?? high;
}

/** `choice` has selected() → {row, column} and pick(row, column). */
function historyMap(run, layers, history, limit, least, choice) {
  const range = (c) =>
    history.steps[c] === history.lastSteps[c] ? grouped(history.steps[c]) : `${grouped(history.steps[c])}–${grouped(history.lastSteps[c])}`;
  return new Heatmap({
    label: `Step by layer imbalance of ${run.name}. Arrow keys choose step and layer.`,
    rowTitle: "layer",
    columnTitle: "step →",
    rows: layers,
    columns: () => history.steps,
    height: mapHeight(layers.length, least, 12),
    value: (row, column) => history.rows[row][column],
    pixel: () => {
      const table = pixels("heat");
      const scale = 255 / Math.log(limit);
      return (value) => table[Math.round(Math.max(0, Math.min(255, Math.log(value) * scale))) || 0];
    },
    describe: (row, column) => [`step ${range(column)} · layer ${layers[row]}`, `max / ideal ${formatFor("max_over_ideal")(history.rows[row][column])}`],
    ...choice,
  });
}

/** Runs whose layers have their scalars but no counts: a map each, and nothing below it. */
function addScalarHistories(section, runs) {
  for (const run of runs.filter((one) => one.stacks.length === 0))
    for (const stack of scalarStacks(run)) {
      const history = run.imbalance(stack);
      const limit = heatLimit([history]);
      const chosen = { row: -1, column: -1 };
      const pick = (row, column) => {
        Object.assign(chosen, { row, column });
        selectStep(history.steps[column]);
        map.mark();
      };
      const map = historyMap(run, stack.layers, history, limit, 220, { selected: () => chosen, pick });
      const names = [runs.length > 1 ? run.name : "", stack.stack].filter(Boolean).join(" · ");
      section.append(card("Step × layer", HISTORY_NOTE, names ? element("h4", {}, names) : null, map.element, heatLegend(limit)));
    }
}

/** [{stack, layers}] as the names of the scalars tell them. */
function scalarStacks(run) {
  const stacks = new Map();
  for (const key of run.lines.keys()) {
    const found = key.match(/^moe_balance\/(?:(.+)\/)?layer_(\d+)\/max_over_ideal$/);
    if (found) stacks.set(found[1] ?? "", [...(stacks.get(found[1] ?? "") ?? []), Number(found[2])]);
  }
  return [...stacks].sort().map(([stack, layers]) => ({ stack, layers: layers.sort((a, b) => a - b) }));
}

const heatLegend = (limit) => scaleLegend("heat", ["1", `${Number(Math.sqrt(limit).toPrecision(2))}×`, `${limit}× and above`]);

const mapHeight = (rows, least, perRow) => Math.max(Math.min(least, rows * perRow * 2), Math.min(480, rows * 5), 36);

function nearestPlace(steps, step) {
  let best = 0;
  for (let k = 1; k < steps.length; k++) if (Math.abs(steps[k] - step) < Math.abs(steps[best] - step)) best = k;
  return best;
}

function scaleLegend(map, labels, dead = false) {
  const bar = element("i", { className: "scale" });
  const paint = () => (bar.style.background = gradient(map));
  paint();
  themeListeners.push(paint);
  const ends = element("span", { className: "ends" }, labels.map((label) => element("span", {}, label)));
  const nothing = dead ? element("span", { className: "dead" }, element("i", {}), "no assignment") : null;
  return element("div", { className: "legend" }, element("span", { className: "ramp" }, bar, ends), nothing);
}
