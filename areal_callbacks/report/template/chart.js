// Lines over the steps, drawn by uPlot.

const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const runDash = (run) => DASHES[run.number % DASHES.length];
const runColour = (run) => `series-${(run.number % 8) + 1}`;

const stepCharts = [];
const selection = { step: null, listeners: [] };

function selectStep(step) {
  selection.step = step;
  selection.listeners.forEach((listener) => listener(step));
  stepCharts.forEach((chart) => chart.plot.redraw(false, false));
}

/** All lines on one axis of steps: undefined (the line goes on) without a value, null (it breaks) where not finite. */
function align(lines, place) {
  const steps = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const index = new Map(steps.map((step, k) => [step, k]));
  const raw = lines.map((line) => {
    const values = new Array(steps.length);
    line.x.forEach((step, k) => (values[index.get(step)] = line.y[k]));
    return values;
  });
  const drawn = raw.map((values) => values.map((value) => (value === undefined ? undefined : place(value))));
  return { steps, raw, drawn };
}

/**
 * lines: [{label, key, colour, x, y, dash, width, fill, hidden (legend only)}]
 * options: {log, zero, height, key (decides the labels of the axis)}
 */
class StepChart {
  constructor(host, lines, options = {}) {
    Object.assign(this, { host, lines, options });
    this.floor = options.log ? this.#floor() : null;
    const { steps, raw, drawn } = align(lines, (value) => this.#place(value));
    Object.assign(this, { steps, raw });
    this.plot = new uPlot(this.#settings(), [steps, ...drawn], host);
    this.#makeAccessible();
    this.#selectOnClick();
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(host);
    stepCharts.push(this);
  }

  resize() {
    const width = this.host.clientWidth;
    if (width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: this.plot.height });
  }

  destroy() {
    stepCharts.splice(stepCharts.indexOf(this), 1);
    this.observer.disconnect();
    this.plot.destroy();
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
    const axis = { stroke: () => colour("muted"), grid: { stroke: () => colour("grid"), width: 1 }, ticks: { show: false } };
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    return {
      width: Math.max(200, this.host.clientWidth),
      height: options.height ?? 200,
      padding: [8, 16, 0, 0],
      cursor: { sync: { key: "steps" }, points: { size: 6 }, dataIdx: (_, s, hovered) => this.#nearest(s, hovered) },
      legend: { markers: { width: 2, stroke: (_, s) => this.#marker(s), dash: (_, s) => (this.lines[s - 1].dash?.length ? "dashed" : "solid") } },
      scales: { x: { time: false }, y: options.log ? this.#logScale() : { range: (_, low, high) => this.#range(low, high) } },
      axes: [
        { ...axis, font, size: 26, gap: 4, space: 70, values: (_, splits) => splits.map((v) => (Number.isInteger(v) ? grouped(v) : "")) },
        { ...axis, font, size: 58, gap: 6, ...(options.log ? this.#logAxis() : { values: axisLabels(options.key ?? this.lines[0].key) }) },
      ],
      series: [{ label: "step", value: (_, v) => grouped(v ?? this.steps.at(-1)) }, ...this.lines.map((line, k) => this.#series(line, k))],
      hooks: { draw: [(u) => this.#drawOddities(u), (u) => this.#drawSelection(u)] },
    };
  }

  #series(line, k) {
    const format = formatFor(line.key);
    const finite = line.y.filter(Number.isFinite);
    return {
      label: line.label,
      stroke: () => colour(line.colour),
      fill: line.fill ? () => colour(line.fill) : undefined,
      width: line.hidden ? 0 : (line.width ?? 1.5),
      dash: line.dash,
      paths: line.hidden ? () => null : undefined,
      points: { show: !line.hidden && finite.length < 30 && line.width !== 1, size: 4 },
      value: (_, value, __, index) => format(index === null ? line.y.at(-1) : this.raw[k][index]),
    };
  }

  #marker(s) {
    return `var(--${this.lines[s - 1].colour})`;
  }

  #range(low, high) {
    if (low === null || high === null) return [0, 1];
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

  /** The nearest step with a value: lines of one chart need not have the same steps. */
  #nearest(s, hovered) {
    const values = this.raw[s - 1];
    if (s === 0 || values[hovered] !== undefined) return hovered;
    for (let distance = 1; distance < values.length; distance++) {
      if (values[hovered - distance] !== undefined) return hovered - distance;
      if (values[hovered + distance] !== undefined) return hovered + distance;
    }
    return hovered;
  }

  /** What no line can show, yet must be seen: NaN and infinities as crosses, zeros of a log scale as ticks on its foot. */
  #drawOddities(u) {
    const { ctx, bbox } = u;
    const size = 3 * devicePixelRatio;
    ctx.save();
    ctx.lineWidth = 1.5 * devicePixelRatio;
    this.raw.forEach((values, k) => {
      if (!u.series[k + 1].show) return;
      ctx.strokeStyle = colour(this.lines[k].colour);
      values.forEach((value, index) => {
        const foot = this.options.log && value <= 0 && Number.isFinite(value);
        if (value === undefined || (Number.isFinite(value) && !foot)) return;
        const x = u.valToPos(this.steps[index], "x", true);
        if (x < bbox.left || x > bbox.left + bbox.width) return;
        const y = value > 0 ? bbox.top + size : bbox.top + bbox.height - size;
        const strokes = foot ? [[0, 1, 0, -1]] : [[-1, -1, 1, 1], [1, -1, -1, 1]];
        ctx.beginPath();
        for (const [x0, y0, x1, y1] of strokes) {
          ctx.moveTo(x + x0 * size, y + y0 * size);
          ctx.lineTo(x + x1 * size, y + y1 * size);
        }
        ctx.stroke();
      });
    });
    ctx.restore();
  }

  #drawSelection(u) {
    if (selection.step === null) return;
    const x = Math.round(u.valToPos(selection.step, "x", true)) + 0.5;
    if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) return;
    u.ctx.save();
    u.ctx.strokeStyle = colour("mark");
    u.ctx.globalAlpha = 0.6;
    u.ctx.lineWidth = devicePixelRatio;
    u.ctx.beginPath();
    u.ctx.moveTo(x, u.bbox.top);
    u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
    u.ctx.stroke();
    u.ctx.restore();
  }

  #selectOnClick() {
    let pressedAt = null;
    this.plot.over.addEventListener("pointerdown", (event) => (pressedAt = event.clientX));
    this.plot.over.addEventListener("click", (event) => {
      if (selection.listeners.length === 0 || Math.abs(event.clientX - pressedAt) > 3) return;
      selectStep(this.steps[this.plot.posToIdx(event.clientX - this.plot.over.getBoundingClientRect().left)]);
    });
  }

  #makeAccessible() {
    const { host, plot } = this;
    host.tabIndex = 0;
    host.setAttribute("role", "group");
    host.addEventListener("keydown", (event) => {
      if (event.target !== host || !["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
      event.preventDefault();
      this.#moveCursor(event);
    });
    for (const label of host.querySelectorAll(".u-series:not(:first-child) th")) {
      label.tabIndex = 0;
      label.setAttribute("role", "button");
      label.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        label.click();
      });
    }
    host.addEventListener("blur", () => plot.setCursor({ left: -10, top: -10 }));
  }

  #moveCursor(event) {
    const last = this.steps.length - 1;
    const present = this.plot.cursor.idx ?? last;
    const move = event.shiftKey ? 10 : 1;
    const targets = { ArrowLeft: present - move, ArrowRight: present + move, Home: 0, End: last };
    const index = Math.max(0, Math.min(last, targets[event.key]));
    this.plot.setCursor({ left: this.plot.valToPos(this.steps[index], "x"), top: this.plot.over.clientHeight / 2 });
    speak([...this.host.querySelectorAll(".u-series")].map((entry) => entry.textContent).join(", "));
  }
}

themeListeners.push(() => stepCharts.forEach((chart) => chart.plot.redraw(false, true)));
