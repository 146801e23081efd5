// What holds for all charts: the axis below them, smoothing; and the summary for the clipboard.

class Toolbar {
  constructor() {
    this.axes = element("div", { className: "segments", role: "group", "aria-label": "Horizontal axis" });
    this.smooth = element("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: view.smooth, "aria-label": "Smoothing", oninput: () => choose({ smooth: Number(this.smooth.value) }) });
    this.amount = element("output", {});
    this.copy = button("Copy summary", () => this.#copy());
    this.live = element("p", { className: "live", role: "status", hidden: true });
    this.element = element("div", { className: "toolbar" },
      element("span", {}, "over "), this.axes, element("label", {}, "smoothing ", this.smooth, " ", this.amount), this.live, this.copy);
    viewListeners.push(() => this.runs && this.show(this.runs));
  }

  show(runs) {
    this.runs = runs;
    const known = Object.keys(AXES).filter((axis) => runs.every((run) => run.along(axis)));
    const focused = this.axes.contains(document.activeElement);
    this.axes.replaceChildren(...known.map((axis) => button(AXES[axis].title, () => choose({ x: axis }), { "aria-pressed": String(axis === axisOf(runs)) })));
    if (focused) this.axes.querySelector('[aria-pressed="true"]').focus();
    this.smooth.value = view.smooth;
    this.amount.textContent = view.smooth > 0 ? `${view.smooth.toFixed(2)}; faint: as recorded` : "off";
  }

  async #copy() {
    const copied = await copyText(summaryText(this.runs));
    this.copy.textContent = copied ? "Copied" : "Not copied";
    speak(this.copy.textContent);
    setTimeout(() => (this.copy.textContent = "Copy summary"), 2000);
  }
}

/** Whether the clipboard took it; old ways are tried where the new one is not allowed. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = element("textarea", { value: text, className: "unseen" });
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    return copied;
  }
}
