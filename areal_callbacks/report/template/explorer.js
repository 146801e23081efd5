// Any scalars: a list to search, and a chart of those that are chosen, over each other.

class Explorer {
  constructor() {
    this.search = element("input", { type: "search", "aria-label": "Search scalars", autocomplete: "off", spellcheck: false, oninput: () => this.#filter(), onkeydown: (event) => this.#key(event) });
    this.list = element("ul", { role: "listbox", "aria-label": "Scalars", "aria-multiselectable": "true", tabIndex: 0, onkeydown: (event) => this.#key(event) });
    this.host = element("div");
    this.title = element("h4");
    this.log = element("input", { type: "checkbox", onchange: () => this.#draw() });
    const help = element("p", { className: "note" }, "Click for one, Ctrl or ⌘ and click (Space on the keyboard) to lay another over it.");
    const head = element("div", { className: "head" }, this.title, element("label", {}, this.log, " log scale"));
    this.element = card("All scalars", "everything that was recorded, under its own name", element("div", { className: "explorer" },
      element("div", { className: "finder" }, this.search, this.list, help), element("div", { className: "viewer" }, head, this.host)));
    addDownloads(this.element, "All scalars", () => this.chart.lines);
    this.element.querySelector(".tools").prepend(button("CSV of all", () => this.#downloadAll(), { "aria-label": "all scalars as CSV" }));
    this.cursor = null;
    viewListeners.push((changed) => changed.has("scalars") && this.runs && this.#showChosen());
  }

  /** Also after new exports. */
  show(runs, allKeys) {
    const added = allKeys.length !== this.list.children.length;
    Object.assign(this, { runs, keys: [...allKeys].sort(byLayerNumber) });
    this.element.hidden = this.keys.length === 0;
    if (this.element.hidden) return;
    this.search.placeholder = `Search ${numbered(this.keys.length, "scalar")}`;
    if (added) this.#fill();
    for (const option of this.list.children) option.lastChild.replaceChildren(...present([this.#valueOf(option.dataset.key)]));
    this.#showChosen();
  }

  get chosen() {
    const known = view.scalars.filter((key) => this.keys.includes(key));
    return known.length > 0 ? known : [this.keys.find((key) => LOSS.test(key)) ?? this.keys[0]];
  }

  #fill() {
    this.list.replaceChildren(...this.keys.map((key, index) => {
      const cut = key.lastIndexOf("/") + 1;
      const name = element("span", { className: "name", title: key }, element("span", { className: "path" }, key.slice(0, cut)), key.slice(cut));
      const option = element("li", { role: "option", id: `scalar-${index}`, onclick: (event) => this.#pick(key, event.ctrlKey || event.metaKey || event.shiftKey) }, name, element("span", { className: "value" }));
      option.dataset.key = key;
      return option;
    }));
    this.#filter(false);
  }

  /** Of one run its last value, of several how far the last run is from the first. */
  #valueOf(key) {
    const [first, last] = [this.runs[0], this.runs.at(-1)].map((run) => run.series(key)?.y);
    if (this.runs.length === 1) return formatFor(key)(first.at(-1));
    return first && last ? changeElement(judgeChange(key, last, first)) : null;
  }

  #pick(key, add) {
    this.cursor = key;
    const { chosen } = this;
    if (!add) choose({ scalars: [key] });
    else choose({ scalars: chosen.includes(key) && chosen.length > 1 ? chosen.filter((other) => other !== key) : [...new Set([...chosen, key])] });
    this.#mark();
  }

  #showChosen() {
    if (!this.keys.includes(this.cursor)) this.cursor = this.chosen[0];
    this.#mark();
    this.#draw();
  }

  #mark() {
    const chosen = new Set(this.chosen);
    for (const option of this.list.children) {
      option.setAttribute("aria-selected", String(chosen.has(option.dataset.key)));
      option.classList.toggle("cursor", option.dataset.key === this.cursor);
    }
    const active = this.#options().find((option) => option.dataset.key === this.cursor);
    if (active) this.list.setAttribute("aria-activedescendant", active.id);
  }

  /** Every word must occur somewhere in the key. */
  #filter(pick = true) {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const option of this.list.children) option.hidden = !words.every((word) => option.dataset.key.toLowerCase().includes(word));
    const first = this.#options().find((option) => !option.hidden);
    if (pick && first && words.length > 0) this.#pick(first.dataset.key, false);
  }

  #options() {
    return [...this.list.children];
  }

  #key(event) {
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 };
    if (event.key === " " && event.target === this.list) this.#pick(this.cursor, true);
    else if (event.key in moves) this.#move(moves[event.key], event.ctrlKey || event.metaKey);
    else return;
    event.preventDefault();
  }

  /** With Ctrl the cursor alone moves, so that Space can add what it stands on. */
  #move(by, cursorOnly) {
    const visible = this.#options().filter((option) => !option.hidden);
    if (visible.length === 0) return;
    const at = visible.findIndex((option) => option.dataset.key === this.cursor);
    const next = visible[Math.max(0, Math.min(visible.length - 1, at + by))];
    if (!cursorOnly) this.#pick(next.dataset.key, false);
    this.cursor = next.dataset.key;
    this.#mark();
    next.scrollIntoView({ block: "nearest" });
  }

  #draw() {
    const { chosen } = this;
    this.title.textContent = chosen.join(" · ");
    const lines = overlayLines(this.runs, chosen);
    const options = { title: "Chosen scalars", key: lines[0].key, log: this.log.checked, height: 280 };
    if (this.chart && JSON.stringify(options) === this.drawn) return this.chart.setLines(lines);
    this.drawn = JSON.stringify(options);
    this.chart?.destroy();
    this.chart = new StepChart(this.host, lines, options);
    return undefined;
  }

  #downloadAll() {
    const lines = this.runs.flatMap((run) => this.keys.filter((key) => run.has(key)).map((key) => ({ run, key, ...run.series(key) })));
    download(fileName(this.runs.map((run) => run.name).join(" "), "csv"), "text/csv", [toCsv(lines)]);
  }
}

/** One line for every run and key: runs differ in colour, keys in dashes; of one run keys differ in colour. */
function overlayLines(runs, keys) {
  const sides = chooseSides(runs, keys);
  const several = runs.length > 1;
  return keys.flatMap((key, index) =>
    runs
      .filter((run) => run.has(key))
      .map((run) => ({
        key,
        run,
        ...run.series(key),
        side: sides.get(key),
        label: sideLabel(several ? ofRun(run, keys.length > 1 ? key : "") : key, sides.get(key)),
        colour: several ? runColour(run) : `series-${(index % 8) + 1}`,
        dash: several ? DASHES[index % DASHES.length] : undefined,
      })),
  );
}

const sideLabel = (label, side) => (side ? `${label} (right)` : label);

/** Keys of another unit than the first, or of another size by a factor of ten, go to the axis on the right. */
function chooseSides(runs, keys) {
  const size = (key) => runs.reduce((most, run) => (run.series(key)?.y ?? []).reduce((high, value) => (Number.isFinite(value) ? Math.max(high, Math.abs(value)) : high), most), 0);
  const first = size(keys[0]);
  const fits = (key) => unitOf(key) === unitOf(keys[0]) && size(key) <= 10 * first && 10 * size(key) >= first;
  return new Map(keys.map((key) => [key, fits(key) ? undefined : "right"]));
}

/** layer_2 before layer_10. */
const byLayerNumber = (a, b) => a.localeCompare(b, "en", { numeric: true });
