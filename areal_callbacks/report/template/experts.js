// The experts at one step: all layers as a map, one layer as bars.

const PLAY_INTERVAL = 140;

class ExpertCards {
  constructor(chooseLayer, chooseSnapshot) {
    Object.assign(this, { chooseLayer, chooseSnapshot });
    this.mapHost = element("div");
    this.barHost = element("div", { className: "chart bars" });
    const map = card("Layer × expert", "", this.#controls(), this.mapHost, scaleLegend("load", ["¼", "ideal", "4×"], true));
    const bars = card("Experts of the layer", "", this.barHost);
    this.cards = [map, bars];
    this.mapNote = map.querySelector(".note");
    [this.barHeading, this.barNote] = bars.querySelectorAll("h3, .note");
    addDownloads(map, "Layer × expert");
    addDownloads(bars, "Experts of the layer");
  }

  /** now: {run, loads, snapshot, row, named (the run's name is told)} */
  show(now) {
    Object.assign(this, now);
    const layout = JSON.stringify([this.loads.stack, this.loads.layers, this.loads.experts, this.run.number]);
    if (layout !== this.layout) this.#build();
    this.layout = layout;
    this.#tell();
    this.map.draw();
    this.bars ??= makeBars(this.barHost, this.#barData(), (expert) => this.#describe(this.row, expert));
    this.bars.setData(this.#barData());
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.player.setAttribute("aria-pressed", "false");
    this.player.replaceChildren("▶ Play");
  }

  get step() {
    return this.loads.steps[this.snapshot];
  }

  #build() {
    const { loads } = this;
    this.expertIds = Array.from({ length: loads.width }, (_, expert) => expert);
    this.map = this.#makeMap();
    this.mapHost.replaceChildren(this.map.element);
    this.layerPicker.replaceChildren(...loads.layers.map((layer, row) => element("option", { value: row }, String(layer))));
  }

  #makeMap() {
    const { layers } = this.loads;
    return new Heatmap({
      label: "Layer by expert load at the chosen step. Arrow keys choose layer and expert.",
      rowTitle: "layer",
      columnTitle: () => "expert →",
      rows: layers,
      columns: () => this.expertIds,
      height: mapHeight(layers.length, 290, 16),
      value: (row, column) => this.loads.ratio(this.snapshot, row, column),
      pixel: () => {
        const table = pixels("load");
        const dead = deadPixel();
        return (value) => (value > 0 ? table[Math.round(255 * Math.max(0, Math.min(1, loadPosition(value))))] : dead);
      },
      describe: (row, column) => this.#describe(row, column),
      selected: () => ({ row: this.row, column: -1 }),
      pick: (row) => this.chooseLayer(layers[row]),
    });
  }

  #tell() {
    const { loads, snapshot, row, run } = this;
    const kept = loads.steps.length;
    const thinned = kept < run.loadExports ? `; ${grouped(kept)} of ${grouped(run.loadExports)} exports are kept` : "";
    this.slider.max = kept - 1;
    this.slider.value = snapshot;
    this.slider.setAttribute("aria-valuetext", `step ${this.step}`);
    this.stepLabel.textContent = grouped(this.step);
    this.layerPicker.value = row;
    this.mapNote.textContent = `${this.named ? `${run.name}: ` : ""}load over the ideal load at one step${thinned}`;
    this.barHeading.textContent = `Experts of layer ${loads.layers[row]}`;
    this.barNote.textContent = this.#layerNote();
  }

  #layerNote() {
    const { loads, snapshot, row } = this;
    const counts = loads.counts(snapshot, row);
    const dead = counts.filter((count) => count === 0).length;
    const busiest = counts.indexOf(Math.max(...counts.filter((count) => !Number.isNaN(count))));
    const total = loads.totals[snapshot][row];
    if (!(total > 0)) return `step ${grouped(this.step)}: nothing was routed`;
    return `step ${grouped(this.step)}: ${grouped(total)} assignments, busiest expert ${busiest} (${times(loads.peak(snapshot, row))} ideal)${dead ? `, ${dead} dead` : ""}; dashed: the ideal load ${plain(100 / counts.length)} %`;
  }

  #describe(row, expert) {
    const { loads, snapshot } = this;
    const count = loads.count(snapshot, row, expert);
    const title = `layer ${loads.layers[row]} · expert ${expert}`;
    if (Number.isNaN(count)) return [title, "no such expert"];
    const total = loads.totals[snapshot][row];
    const share = total > 0 ? (100 * count) / total : 0;
    const about = count >= 500 && count !== loads.peaks[snapshot][row] ? "≈ " : "";
    return [title, `${times(loads.ratio(snapshot, row, expert))} ideal · ${share.toPrecision(3)} %`, `${about}${numbered(count, "assignment")}${count === 0 ? ": dead" : ""}`];
  }

  #controls() {
    this.player = button("▶ Play", () => this.#togglePlaying(), { "aria-pressed": "false" });
    this.slider = element("input", {
      type: "range", min: 0, step: 1, "aria-label": "Step",
      oninput: () => {
        this.stop();
        this.chooseSnapshot(Number(this.slider.value));
      },
    });
    this.stepLabel = element("output", { className: "step" });
    this.layerPicker = element("select", { "aria-label": "Layer", onchange: () => this.chooseLayer(this.loads.layers[this.layerPicker.value]) });
    return element("div", { className: "controls" }, this.player, this.slider, element("label", {}, "step ", this.stepLabel), element("label", {}, "layer ", this.layerPicker));
  }

  #togglePlaying() {
    if (this.timer) return this.stop();
    this.player.setAttribute("aria-pressed", "true");
    this.player.replaceChildren("❚❚ Pause");
    this.timer = setInterval(() => this.chooseSnapshot((this.snapshot + 1) % this.loads.steps.length), PLAY_INTERVAL);
    return undefined;
  }

  #barData() {
    const { loads, snapshot, row } = this;
    const ideal = 100 / loads.experts[row];
    const share = loads.counts(snapshot, row).map((_, expert) => {
      const ratio = loads.totals[snapshot][row] > 0 ? loads.ratio(snapshot, row, expert) : 0;
      return Number.isFinite(ratio) ? ratio * ideal : 0;
    });
    return [share.map((_, expert) => expert), share, share.map(() => ideal)];
  }
}
