// MoE balance: which run, stack, layer and snapshot is shown, and the cards that show it.

const stackTitle = (stack) => stack || "main decoder";

class Balance {
  constructor() {
    this.histories = new LayerHistories((run) => this.#choiceIn(run));
    this.experts = new ExpertCards((layer) => choose({ layer }), (snapshot) => this.#chooseSnapshot(snapshot));
    this.tabs = element("div", { className: "tabs", role: "group", "aria-label": "Stack" });
    this.element = element("div", { className: "stacked" });
    viewListeners.push((changed) => this.all?.length && this.#follow(changed));
  }

  /** Also after new exports. */
  show(runs, loads) {
    this.all = runs.map((run, k) => ({ run, loads: loads[k] })).filter(({ run }) => run.stacks.length > 0);
    if (this.all.length === 0) return;
    if (!this.element.hasChildNodes()) {
      const histories = card("Step × layer", HISTORY_NOTE, this.tabs, this.histories.element);
      addDownloads(histories, "Step × layer", () => this.#historyLines());
      this.element.append(histories, ...this.experts.cards);
    }
    this.#showStack();
  }

  #showStack() {
    const stacks = [...new Set(this.all.flatMap(({ run }) => run.stacks.map((own) => own.stack)))];
    this.stack = stacks.includes(view.stack) ? view.stack : stacks[0];
    const having = this.all.filter((one) => this.#stackOf(one.run));
    this.shown = having.find(({ run }) => run.number === this.shown?.run.number) ?? having[0];
    this.#fillTabs(stacks);
    this.histories.show(having.map(({ run }) => ({ run, stack: this.#stackOf(run) })));
    this.#showChoice();
  }

  #showChoice() {
    const loads = this.shown.loads.find((own) => own.stack === this.stack);
    const snapshot = view.step === null ? loads.steps.length - 1 : nearestIndex(loads.steps, view.step);
    const known = loads.layers.indexOf(view.layer);
    const peaks = loads.layers.map((_, row) => loads.peak(loads.steps.length - 1, row));
    const row = known >= 0 ? known : peaks.indexOf(Math.max(...peaks));
    Object.assign(this, { loads, snapshot, row });
    this.histories.mark();
    this.experts.show({ run: this.shown.run, loads, snapshot, row, named: this.all.length > 1 });
  }

  #follow(changed) {
    if (changed.has("stack")) this.#showStack();
    else if (changed.has("step") || changed.has("layer")) this.#showChoice();
    if (changed.has("x")) this.histories.draw();
  }

  #stackOf(run) {
    return run.stacks.find((own) => own.stack === this.stack);
  }

  /** The newest snapshot is chosen by no step: it moves on with a run that is written. */
  #chooseSnapshot(snapshot) {
    choose({ step: snapshot === this.loads.steps.length - 1 ? null : this.loads.steps[snapshot] });
  }

  /** What is marked in a run's map, and what a click there does. */
  #choiceIn(run) {
    return {
      selected: (history) =>
        run === this.shown.run && this.loads ? { row: this.row, column: nearestIndex(history.steps, this.loads.steps[this.snapshot]) } : { row: -1, column: -1 },
      pick: (row, column, history) => {
        this.shown = this.all.find((one) => one.run === run);
        this.experts.stop();
        choose({ step: this.#stepToShow(history, column), layer: this.#stackOf(run).layers[row] });
        this.#showChoice();
      },
    };
  }

  /** A column of a long run stands for several steps: take a kept one among them. */
  #stepToShow(history, column) {
    const { steps } = this.shown.loads.find((own) => own.stack === this.stack);
    return steps.find((step) => step >= history.steps[column] && step <= history.lastSteps[column]) ?? history.steps[column];
  }

  #fillTabs(stacks) {
    const tab = (stack) => button(stackTitle(stack), () => choose({ stack, layer: null }), { "aria-pressed": String(stack === this.stack) });
    this.tabs.hidden = stacks.length < 2;
    this.tabs.replaceChildren(...stacks.map(tab));
  }

  #historyLines() {
    return this.all.flatMap(({ run }) =>
      (this.#stackOf(run)?.layers ?? []).map((layer) => `${layerPrefix(this.stack, layer)}/max_over_ideal`).filter((key) => run.has(key)).map((key) => ({ run, key, ...run.series(key) })),
    );
  }
}
