// MoE balance: step × layer, layer × expert at a step, the experts of a layer.

const PLAY_INTERVAL = 140;
const stackTitle = (stack) => stack || "main decoder";

class Balance {
  constructor(section, runs, loads) {
    this.section = section;
    this.runs = runs.map((run, k) => ({ run, loads: loads[k] })).filter(({ run }) => run.stacks.length > 0);
    this.stacks = [...new Set(this.runs.flatMap(({ run }) => run.stacks.map((stack) => stack.stack)))];
    this.layer = 0;
    this.show(this.runs[0], this.stacks[0]);
    selection.listeners.push((step) => step !== this.step && this.goTo(step, false));
  }

  /** Draws everything for one stack; the loads shown are those of one run. */
  show(shown, stack) {
    this.stop();
    this.stack = stack;
    this.shown = shown.run.stacks.some((own) => own.stack === stack) ? shown : this.runs.find((one) => this.#stackOf(one));
    this.loads = this.shown.loads.find((own) => own.stack === stack);
    const { layers } = this.loads;
    const peaks = layers.map((_, row) => this.#peak(this.loads.steps.length - 1, row));
    this.layer = peaks.indexOf(Math.max(...peaks));
    this.snapshot = this.loads.steps.length - 1;
    this.section.replaceChildren(...this.#cards());
    this.barChart = this.#bars();
    this.update();
  }

  get step() {
    return this.loads.steps[this.snapshot];
  }

  goTo(step, announce = true) {
    this.snapshot = this.loads.nearest(step);
    this.update(announce);
  }

  update(announce = true) {
    const { layers } = this.loads;
    this.slider.value = this.snapshot;
    this.slider.setAttribute("aria-valuetext", `step ${this.step}`);
    this.stepLabel.textContent = grouped(this.step);
    this.layerPicker.value = this.layer;
    this.layerHeading.textContent = `Experts of layer ${layers[this.layer]}`;
    this.layerNote.textContent = this.#layerNote();
    this.maps.forEach((map) => map.mark());
    this.expertMap.draw();
    this.barChart.setData(this.#barData());
    if (announce) selectStep(this.step);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.player?.setAttribute("aria-pressed", "false");
    this.player?.replaceChildren("▶ Play");
  }

  #stackOf({ run }) {
    return run.stacks.find((own) => own.stack === this.stack);
  }

  #peak(snapshot, row) {
    let peak = 0;
    for (let expert = 0; expert < this.loads.experts[row]; expert++)
      peak = Math.max(peak, this.loads.ratio(snapshot, row, expert) || 0);
    return peak;
  }

  #cards() {
    return [this.#historyCard(), this.#expertCard(), this.#layerCard()];
  }

  #historyCard() {
    const all = this.runs.filter((one) => this.#stackOf(one));
    const histories = all.map(({ run }) => run.imbalance(run.stacks.find((own) => own.stack === this.stack)));
    const limit = heatLimit(histories);
    const least = this.runs.length > 1 ? 150 : 220;
    this.maps = all.map((one, k) => historyMap(one.run, this.#stackOf(one).layers, histories[k], limit, least, this.#choice(one, histories[k])));
    const named = this.maps.flatMap((map, k) =>
      all.length > 1 ? [element("h4", { className: all[k] === this.shown ? "shown" : "" }, all[k].run.name), map.element] : [map.element],
    );
    return card("Step × layer", HISTORY_NOTE, this.#stackTabs(), named, heatLegend(limit));
  }

  /** What is selected in a run's map, and what a click there does. */
  #choice(one, history) {
    return {
      selected: () => (one === this.shown ? { row: this.layer, column: nearestPlace(history.steps, this.step) } : { row: -1, column: -1 }),
      pick: (row, column) => {
        if (one !== this.shown) this.show(one, this.stack);
        this.layer = row;
        this.stop();
        this.goTo(this.#stepToShow(history, column));
      },
    };
  }

  /** A column of a long run stands for several steps: take a kept one among them. */
  #stepToShow(history, column) {
    return this.loads.steps.find((step) => step >= history.steps[column] && step <= history.lastSteps[column]) ?? history.steps[column];
  }

  #expertCard() {
    const { loads } = this;
    this.expertMap = new Heatmap({
      label: "Layer by expert load at the chosen step. Arrow keys choose layer and expert.",
      rowTitle: "layer",
      columnTitle: "expert →",
      rows: loads.layers,
      columns: () => this.#expertIds(),
      height: mapHeight(loads.layers.length, 290, 16),
      value: (row, column) => loads.ratio(this.snapshot, row, column),
      pixel: () => {
        const table = pixels("load");
        const dead = deadPixel();
        return (value) => (value > 0 ? table[Math.round(255 * Math.max(0, Math.min(1, loadPosition(value))))] : dead);
      },
      describe: (row, column) => this.#expertLines(row, column),
      selected: () => ({ row: this.layer, column: -1 }),
      pick: (row) => {
        this.layer = row;
        this.update();
      },
    });
    this.expertIds = Array.from({ length: loads.width }, (_, expert) => expert);
    const legend = scaleLegend("load", ["¼", "ideal", "4×"], true);
    return card("Layer × expert", this.#expertNote(), this.#controls(), this.expertMap.element, legend);
  }

  #expertIds() {
    return this.expertIds ?? [];
  }

  #expertNote() {
    const kept = this.loads.steps.length;
    const name = this.runs.length > 1 ? `${this.shown.run.name}: ` : "";
    const thinned = kept < this.shown.run.loadExports ? `; ${grouped(kept)} of ${grouped(this.shown.run.loadExports)} exports are kept` : "";
    return `${name}load over the ideal load at one step${thinned}`;
  }

  #expertLines(row, column) {
    const { loads, snapshot } = this;
    const count = loads.count(snapshot, row, column);
    const title = `layer ${loads.layers[row]} · expert ${column}`;
    if (Number.isNaN(count)) return [title, "no such expert"];
    const total = loads.totals[snapshot][row];
    const share = total > 0 ? (100 * count) / total : 0;
    const about = count >= 500 ? "≈ " : "";
    return [title, `${times(total > 0 ? loads.ratio(snapshot, row, column) : 0)} ideal · ${share.toPrecision(3)} %`, `${about}${plain(count)} assignments`];
  }

  #controls() {
    const { loads } = this;
    this.player = element("button", { type: "button", onclick: () => this.#toggle(), "aria-pressed": "false" }, "▶ Play");
    this.slider = element("input", {
      type: "range", min: 0, max: loads.steps.length - 1, step: 1, "aria-label": "Step",
      oninput: () => {
        this.stop();
        this.snapshot = Number(this.slider.value);
        this.update();
      },
    });
    this.stepLabel = element("output", { className: "step" });
    this.layerPicker = element("select", { "aria-label": "Layer", onchange: () => { this.layer = Number(this.layerPicker.value); this.update(); } },
      loads.layers.map((layer, row) => element("option", { value: row }, String(layer))));
    return element("div", { className: "controls" }, this.player, this.slider, element("label", {}, "step ", this.stepLabel), element("label", {}, "layer ", this.layerPicker));
  }

  #toggle() {
    if (this.timer) return this.stop();
    this.player.setAttribute("aria-pressed", "true");
    this.player.replaceChildren("❚❚ Pause");
    this.timer = setInterval(() => {
      this.snapshot = (this.snapshot + 1) % this.loads.steps.length;
      this.update();
    }, PLAY_INTERVAL);
    return undefined;
  }

  #stackTabs() {
    if (this.stacks.length < 2) return null;
    const tab = (stack) =>
      element("button", { type: "button", "aria-pressed": String(stack === this.stack), onclick: () => this.show(this.shown, stack) }, stackTitle(stack));
    return element("div", { className: "tabs", role: "group", "aria-label": "Stack" }, this.stacks.map(tab));
  }

  #layerCard() {
    this.barHost = element("div", { className: "chart bars" });
    const made = card("", "", this.barHost);
    [this.layerHeading, this.layerNote] = made.querySelectorAll("h3, .note");
    return made;
  }

  #layerNote() {
    const { loads, snapshot, layer } = this;
    const counts = Array.from({ length: loads.experts[layer] }, (_, expert) => loads.count(snapshot, layer, expert));
    const dead = counts.filter((count) => count === 0).length;
    const busiest = counts.indexOf(Math.max(...counts));
    const total = loads.totals[snapshot][layer];
    if (!(total > 0)) return `step ${grouped(this.step)}: nothing was routed`;
    const idle = dead ? `, ${dead} without any` : "";
    return `step ${grouped(this.step)}: ${grouped(total)} assignments, busiest expert ${busiest} (${times(this.#peak(snapshot, layer))} ideal)${idle}; dashed: the ideal load ${plain(100 / counts.length)} %`;
  }

  #barData() {
    const { loads, snapshot, layer } = this;
    const experts = Array.from({ length: loads.experts[layer] }, (_, expert) => expert);
    const ideal = 100 / experts.length;
    const share = experts.map((expert) => {
      const ratio = loads.totals[snapshot][layer] > 0 ? loads.ratio(snapshot, layer, expert) : 0;
      return Number.isFinite(ratio) ? ratio * ideal : 0;
    });
    return [experts, share, experts.map(() => ideal)];
  }

  #bars() {
    return makeBars(this.barHost, this.#barData(), (expert) => this.#expertLines(this.layer, expert));
  }
}
