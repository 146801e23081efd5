// Any scalar: a list to search, and its chart.

class Explorer {
  constructor(section, runs) {
    this.runs = runs;
    this.keys = [...new Set(runs.flatMap((run) => [...run.lines.keys()]))].sort(byLayerNumber);
    if (this.keys.length === 0) return;
    this.search = element("input", { type: "search", placeholder: `Search ${this.keys.length} scalars`, "aria-label": "Search scalars", autocomplete: "off", spellcheck: false, oninput: () => this.#filter(), onkeydown: (event) => this.#key(event) });
    this.list = element("ul", { role: "listbox", "aria-label": "Scalars", tabIndex: 0, onkeydown: (event) => this.#key(event) });
    this.host = element("div", { className: "chart", "aria-label": "Chosen scalar: arrow keys move through the steps" });
    this.title = element("h4");
    this.log = element("input", { type: "checkbox", onchange: () => this.#draw() });
    const head = element("div", { className: "head" }, this.title, element("label", {}, this.log, " log scale"));
    const made = card("All scalars", "everything that was recorded, under its own name", element("div", { className: "explorer" },
      element("div", { className: "finder" }, this.search, this.list), element("div", { className: "viewer" }, head, this.host)));
    made.classList.add("wide");
    section.append(made);
    this.#fill();
    this.choose(["loss", "train/loss", "train_loss"].find((key) => this.keys.includes(key)) ?? this.keys[0]);
  }

  choose(key) {
    this.key = key;
    for (const option of this.list.children) option.setAttribute("aria-selected", String(option.dataset.key === key));
    const chosen = this.list.querySelector('[aria-selected="true"]');
    if (chosen) this.list.setAttribute("aria-activedescendant", chosen.id);
    this.#draw();
  }

  #fill() {
    this.list.append(...this.keys.map((key, index) => {
      const cut = key.lastIndexOf("/") + 1;
      const format = formatFor(key);
      const value = this.runs.length === 1 ? element("span", { className: "value" }, format(this.runs[0].last(key))) : null;
      const name = element("span", { className: "name", title: key }, element("span", { className: "path" }, key.slice(0, cut)), key.slice(cut));
      const option = element("li", { role: "option", id: `scalar-${index}`, onclick: () => this.choose(key) }, name, value);
      option.dataset.key = key;
      return option;
    }));
  }

  /** Every word must occur somewhere in the key. */
  #filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const option of this.list.children) option.hidden = !words.every((word) => option.dataset.key.toLowerCase().includes(word));
    const first = this.#visible()[0];
    if (first && words.length > 0) this.choose(first.dataset.key);
  }

  #visible() {
    return [...this.list.children].filter((option) => !option.hidden);
  }

  #key(event) {
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const options = this.#visible();
    if (options.length === 0) return;
    const present = options.findIndex((option) => option.dataset.key === this.key);
    const next = options[Math.max(0, Math.min(options.length - 1, present + moves[event.key]))];
    this.choose(next.dataset.key);
    next.scrollIntoView({ block: "nearest" });
  }

  #draw() {
    this.chart?.destroy();
    this.title.textContent = this.key;
    const present = this.runs.filter((run) => run.has(this.key));
    const lines = present.map((run) => ({
      key: this.key, label: this.runs.length > 1 ? run.name : "value", ...run.series(this.key), colour: runColour(run), dash: this.runs.length > 1 ? runDash(run) : undefined,
    }));
    this.chart = new StepChart(this.host, lines, { key: this.key, log: this.log.checked, height: 280 });
  }
}

/** layer_2 before layer_10. */
const byLayerNumber = (a, b) => a.localeCompare(b, "en", { numeric: true });
