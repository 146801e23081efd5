// Lines over steps, tokens or hours, drawn by uPlot.

const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const runDash = (run) => DASHES[run.number % DASHES.length];
const runColour = (run) => `series-${(run.number % 8) + 1}`;

const stepCharts = new Set();

/** All lines on one axis: undefined (a line goes on) where it has no value. */
function align(lines, places) {
  const x = [...new Set(lines.flatMap((line, k) => line.at.map((index) => places[k][index])))].sort((a, b) => a - b);
  const index = new Map(x.map((place, k) => [place, k]));
  const spread = (values) => lines.map((line, k) => {
    const row = new Array(x.length);
    line.at.forEach((at, n) => (row[index.get(places[k][at])] = values(line)[n]));
    return row;
  });
  return { x, recorded: spread((line) => line.y), drawn: spread((line) => smoothed(line.y, line.at, view.smooth)) };
}

/**
 * options: {log, zero, height, key (decides the labels of the axis)}
 * lines: [{key, label, colour, run, at, y, dash, width, fill, side ("right" for an axis of its own)}]
 */
class StepChart {
  constructor(host, lines, options = {}) {
    Object.assign(this, { host, options });
    host.classList.add("chart");
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(host);
    makeReachable(this);
    stepCharts.add(this);
    this.setLines(lines);
  }

  /** Other values for the same lines keep what the reader has zoomed to and hidden. */
  setLines(lines) {
    const same = this.plot && JSON.stringify(lines.map(describeLine)) === JSON.stringify(this.lines.map(describeLine));
    this.lines = lines;
    this.axis = axisOf(lines.map((line) => line.run));
    this.floor = this.options.log ? this.#floor() : null;
    const { x, recorded, drawn } = align(lines, lines.map((line) => line.run.along(this.axis)));
    this.recorded = recorded;
    const data = [x, ...drawn.map((values) => values.map((value) => (value === undefined ? undefined : this.#place(value))))];
    if (same && this.axis === this.drawnAxis) this.plot.setData(data, !this.#isZoomed());
    else this.#make(data);
    this.host.setAttribute("aria-label", `${this.options.title ?? lines[0].key}: arrow keys move through the ${AXES[this.axis].title}s. ${spokenSummary(lines)}`);
  }

  resize() {
    const width = this.host.clientWidth;
    if (width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: this.plot.height });
  }

  destroy() {
    stepCharts.delete(this);
    this.observer.disconnect();
    this.plot.destroy();
  }

  /** Where a step lies on the axis, for the first run that has it. */
  placeOf(step) {
    const run = this.lines.find((line) => step >= line.run.steps[0] && step <= line.run.steps.at(-1))?.run;
    return run ? run.along(this.axis)[run.nearest(step)] : null;
  }

  /** The step at a place, of the first run. */
  stepAt(place) {
    const { run } = this.lines[0];
    return run.steps[run.nearest(place, this.axis)];
  }

  #make(data) {
    this.plot?.destroy();
    this.drawnAxis = this.axis;
    this.plot = new uPlot(this.#settings(), data, this.host);
    this.#chooseOnClick();
    makeLegendReachable(this.host);
  }

  #isZoomed() {
    const { min, max } = this.plot.scales.x;
    const x = this.plot.data[0];
    return x.length > 1 && (min > x[0] || max < x.at(-1));
  }

  /** The decade below the smallest positive value: where zeros are drawn, and labelled as such. */
  #floor() {
    const positive = this.lines.flatMap((line) => line.y.filter((value) => value > 0 && Number.isFinite(value)));
    const smallest = positive.reduce((a, b) => Math.min(a, b), Infinity);
    const decadeBelow = Number.isFinite(smallest) ? Math.floor(Math.log10(smallest) + 1e-9) : -1;
    this.hasZeros = this.lines.some((line) => line.y.some((value) => value <= 0));
    return 10 ** (decadeBelow - (this.hasZeros ? 1 : 0));
  }

  #place(value) {
    if (!Number.isFinite(value)) return null;
    return this.options.log && value <= 0 ? undefined : value;
  }

  #settings() {
    const { options } = this;
    const range = (side) => (u, low, high) => this.#range(...(view.smooth > 0 ? this.#recordedExtent(u, side) : [low, high]));
    return {
      width: Math.max(200, this.host.clientWidth),
      height: options.height ?? 200,
      padding: [8, 16, 0, 0],
      cursor: { sync: { key: "steps" }, points: { size: 6 }, dataIdx: (_, s, hovered) => this.#nearest(s, hovered) },
      legend: { markers: { width: 2, stroke: (_, s) => `var(--${this.lines[s - 1].colour})`, dash: (_, s) => (this.lines[s - 1].dash?.length ? "dashed" : "solid") } },
      scales: { x: { time: false }, y: options.log ? this.#logScale() : { range: range("y") }, right: { range: range("right") } },
      axes: this.#axes(),
      series: [{ label: AXES[this.axis].title, value: (_, place) => this.#placeText(place) }, ...this.lines.map((line, k) => this.#series(line, k))],
      hooks: { drawAxes: [(u) => drawRecorded(u, this)], draw: [(u) => drawOddities(u, this), (u) => drawChosenStep(u, this)] },
    };
  }

  #axes() {
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: () => colour("muted"), grid: { stroke: () => colour("grid"), width: 1 }, ticks: { show: false }, font };
    const linear = (key) => ({ values: (_, splits) => axisLabels(key)(splits), ...(SECONDS.test(key) ? { incrs: TIME_DISTANCES } : {}) });
    const key = this.options.key ?? this.lines[0].key;
    const right = this.lines.find((line) => line.side === "right");
    const ours = { step: { values: (_, splits) => splits.map((v) => (Number.isInteger(v) ? grouped(v) : "")) }, tokens: { values: (_, splits) => plainLabels(splits) }, hours: { incrs: HOUR_DISTANCES, values: (_, splits) => splits.map((v) => fixed(v, distance(splits))) } };
    return [
      { ...axis, size: 26, gap: 4, space: 70, ...ours[this.axis] },
      { ...axis, size: 58, gap: 6, ...(this.options.log ? this.#logAxis() : linear(key)) },
      ...(right ? [{ ...axis, scale: "right", side: 1, size: 58, gap: 6, grid: { show: false }, ...linear(right.key) }] : []),
    ];
  }

  #series(line, k) {
    const format = formatFor(line.key);
    return {
      label: line.label,
      scale: line.side ?? "y",
      stroke: () => colour(line.colour),
      fill: line.fill ? () => colour(line.fill) : undefined,
      width: line.width ?? 1.5,
      dash: line.dash,
      points: { show: () => this.lines[k].y.filter(Number.isFinite).length < 30 && line.width !== 1, size: 4 },
      value: (_, value, __, index) => format(index === null ? this.lines[k].y.at(-1) : this.recorded[k][index]),
    };
  }

  #placeText(place) {
    const shown = place ?? this.plot?.data[0].at(-1);
    if (shown === undefined) return "–";
    const text = AXES[this.axis].format(shown);
    return this.axis === "step" ? text : `${text} (step ${grouped(this.stepAt(shown))})`;
  }

  /** Of the values that faint lines show where smooth ones are drawn. */
  #recordedExtent(u, side) {
    const { min, max } = u.scales.x;
    const shown = (value, index) => Number.isFinite(value) && u.data[0][index] >= min && u.data[0][index] <= max;
    const values = this.recorded.flatMap((row, k) => ((this.lines[k].side ?? "y") === side && u.series[k + 1].show ? row.filter(shown) : []));
    return values.reduce(([low, high], value) => [Math.min(low ?? value, value), Math.max(high ?? value, value)], [null, null]);
  }

  #range(low, high) {
    if (low === null || high === null || low === undefined) return [0, 1];
    const bottom = this.options.zero && low >= 0 ? 0 : low;
    const room = (high - bottom || Math.abs(high) || 1) * 0.07;
    return [bottom === 0 && this.options.zero ? 0 : bottom - room, high + room];
  }

  #logScale() {
    return {
      distr: 3,
      range: (_, low, high) => {
        const top = Math.max(high ?? 1, this.floor * 10);
        return [this.floor, 10 ** Math.ceil(Math.log10(top) - 1e-9)];
      },
    };
  }

  #logAxis() {
    const splits = (u) => {
      const low = Math.round(Math.log10(u.scales.y.min));
      const high = Math.round(Math.log10(u.scales.y.max));
      const every = Math.ceil((high - low) / 6);
      return Array.from({ length: Math.floor((high - low) / every) + 1 }, (_, k) => 10 ** (low + k * every));
    };
    const isZero = (value) => this.hasZeros && value <= this.floor * 1.01;
    return { splits, filter: (_, s) => s, values: (_, s) => s.map((value) => (isZero(value) ? "0" : decade(value, this.options.key))) };
  }

  /** The nearest place with a value: lines of one chart need not have the same steps. */
  #nearest(s, hovered) {
    const values = this.recorded[s - 1];
    if (s === 0 || values[hovered] !== undefined) return hovered;
    for (let away = 1; away < values.length; away++) {
      if (values[hovered - away] !== undefined) return hovered - away;
      if (values[hovered + away] !== undefined) return hovered + away;
    }
    return hovered;
  }

  #chooseOnClick() {
    const { over } = this.plot;
    let pressedAt = null;
    over.addEventListener("pointerdown", (event) => (pressedAt = event.clientX));
    over.addEventListener("click", (event) => {
      if (Math.abs(event.clientX - pressedAt) > 3) return;
      choose({ step: this.stepAt(this.plot.posToVal(event.clientX - over.getBoundingClientRect().left, "x")) });
    });
  }
}

const describeLine = ({ key, label, colour: name, dash, side, fill }) => [key, label, name, dash, side, fill];

/** The reader's axis, as far as all runs know it. */
const axisOf = (runs) => (runs.every((run) => run.along(view.x)) ? view.x : "step");

const redrawCharts = () => stepCharts.forEach((chart) => chart.plot.redraw(false, true));
themeListeners.push(redrawCharts);
viewListeners.push((changed) => {
  if (changed.has("x") || changed.has("smooth")) stepCharts.forEach((chart) => chart.setLines(chart.lines));
  else if (changed.has("step")) redrawCharts();
});
