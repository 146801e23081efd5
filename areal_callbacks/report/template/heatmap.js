// A grid of coloured cells with axes, hover, click and arrow keys.

const MARGIN = { left: 40, right: 1, top: 5, bottom: 20 };

/**
 * options: label, rowTitle, columnTitle(), rows (labels), columns() (labels), value(row, column), pixel(value),
 * describe(row, column) → lines, pick(row, column), selected() → {row, column}, height, columnLabel(label) → text.
 */
class Heatmap {
  constructor(options) {
    Object.assign(this, { columnLabel: (value) => grouped(value) }, options);
    this.canvas = element("canvas", {});
    this.overlay = element("canvas", { className: "overlay" });
    this.element = element(
      "div",
      { className: "heatmap", tabIndex: 0, role: "application", "aria-roledescription": "heatmap", "aria-label": this.label },
      this.canvas,
      this.overlay,
    );
    this.element.style.height = `${this.height + MARGIN.top + MARGIN.bottom}px`;
    this.#listen();
    new ResizeObserver(() => this.draw()).observe(this.element);
    themeListeners.push(() => this.draw());
  }

  draw() {
    const width = this.element.clientWidth;
    if (width === 0) return;
    this.ratio = devicePixelRatio || 1;
    this.plot = { width: width - MARGIN.left - MARGIN.right, height: this.height };
    const context = this.#prepare(this.canvas, width);
    const columns = this.columns().length;
    if (columns > 0 && this.rows.length > 0) {
      const image = this.#image(Math.min(columns, Math.floor(this.plot.width * this.ratio)), columns);
      context.imageSmoothingEnabled = false;
      context.drawImage(image, MARGIN.left, MARGIN.top, this.plot.width, this.plot.height);
    }
    this.#axes(context);
    this.mark();
  }

  /** Shows what is selected, and the cell under the pointer. */
  mark(hovered = null) {
    if (!this.plot) return;
    const context = this.#prepare(this.overlay, this.element.clientWidth);
    const { row, column } = this.selected();
    const box = (r, c) => this.#box(r, c);
    context.lineWidth = 1.5;
    context.strokeStyle = colour("mark");
    if (column >= 0 && column < this.columns().length) {
      const { x, width } = box(0, column);
      const left = width > 6 ? x : x + width / 2 - 1.5;
      context.strokeRect(left, MARGIN.top, Math.max(3, width), this.plot.height);
    }
    if (row >= 0 && row < this.rows.length) {
      const { y, height } = box(row, 0);
      context.lineWidth = 1;
      context.strokeRect(MARGIN.left, y - 0.5, this.plot.width, height + 1);
      context.fillStyle = colour("mark");
      context.beginPath();
      context.moveTo(MARGIN.left - 1, y + height / 2);
      context.lineTo(MARGIN.left - 6, y + height / 2 - 4);
      context.lineTo(MARGIN.left - 6, y + height / 2 + 4);
      context.fill();
    }
    if (hovered) {
      const { x, y, width, height } = box(hovered.row, hovered.column);
      context.strokeStyle = colour("ink");
      context.strokeRect(x - 1, y - 1, width + 2, height + 2);
    }
  }

  /** Where the middle of a cell is, relative to the element. */
  centre(row, column) {
    const { x, y, width, height } = this.#box(row, column);
    return { x: x + width / 2, y: y + height / 2 };
  }

  #prepare(canvas, width) {
    const height = this.height + MARGIN.top + MARGIN.bottom;
    canvas.width = Math.round(width * this.ratio);
    canvas.height = Math.round(height * this.ratio);
    const context = canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  }

  /** One pixel a cell; several columns that share one keep their largest value. */
  #image(width, columns) {
    const image = element("canvas", { width, height: this.rows.length });
    const context = image.getContext("2d");
    const data = context.createImageData(width, this.rows.length);
    const target = new Uint32Array(data.data.buffer);
    const toPixel = this.pixel();
    for (let x = 0; x < width; x++) {
      const begin = Math.floor((x * columns) / width);
      const end = Math.max(begin + 1, Math.floor(((x + 1) * columns) / width));
      for (let row = 0; row < this.rows.length; row++) {
        let value = this.value(row, begin);
        for (let column = begin + 1; column < end; column++) {
          const other = this.value(row, column);
          if (!(value >= other)) value = Number.isNaN(other) ? value : other;
        }
        target[row * width + x] = Number.isNaN(value) ? 0 : toPixel(value);
      }
    }
    context.putImageData(data, 0, 0);
    return image;
  }

  #axes(context) {
    const { width, height } = this.plot;
    context.fillStyle = colour("muted");
    context.strokeStyle = colour("line");
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const row of tickIndices(this.rows, height, 15)) {
      const { y, height: cell } = this.#box(row, 0);
      context.fillText(String(this.rows[row]), MARGIN.left - 8, y + cell / 2);
    }
    context.textBaseline = "alphabetic";
    context.textAlign = "center";
    const columns = this.columns();
    for (const column of tickIndices(columns, width - 60, 64, 0)) {
      const { x, width: cell } = this.#box(0, column);
      const middle = x + cell / 2;
      context.fillRect(middle - 0.5, MARGIN.top + height, 1, 4);
      if (middle < MARGIN.left + width - 70) context.fillText(this.columnLabel(columns[column]), middle, MARGIN.top + height + 15);
    }
    context.textAlign = "right";
    context.fillText(this.columnTitle(), MARGIN.left + width, MARGIN.top + height + 15);
    context.save();
    context.translate(9, MARGIN.top + height / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(this.rowTitle, 0, 0);
    context.restore();
  }

  #box(row, column) {
    const width = this.plot.width / Math.max(1, this.columns().length);
    const height = this.plot.height / Math.max(1, this.rows.length);
    return { x: MARGIN.left + column * width, y: MARGIN.top + row * height, width, height };
  }

  #cellAt(event) {
    const bounds = this.element.getBoundingClientRect();
    const columns = this.columns().length;
    const column = Math.floor(((event.clientX - bounds.left - MARGIN.left) / this.plot.width) * columns);
    const row = Math.floor(((event.clientY - bounds.top - MARGIN.top) / this.plot.height) * this.rows.length);
    return column >= 0 && column < columns && row >= 0 && row < this.rows.length ? { row, column } : null;
  }

  #listen() {
    this.element.addEventListener("pointermove", (event) => {
      const cell = this.#cellAt(event);
      this.mark(cell);
      if (cell) tip.show(event.clientX, event.clientY, this.describe(cell.row, cell.column));
      else tip.hide();
    });
    this.element.addEventListener("pointerleave", () => this.#leave());
    this.element.addEventListener("blur", () => this.#leave());
    this.element.addEventListener("click", (event) => {
      const cell = this.#cellAt(event);
      if (cell) this.pick(cell.row, cell.column);
    });
    this.element.addEventListener("keydown", (event) => this.#key(event));
  }

  #leave() {
    this.cursor = null;
    this.mark();
    tip.hide();
  }

  #key(event) {
    const far = event.shiftKey ? 10 : 1;
    const moves = { ArrowLeft: [0, -far], ArrowRight: [0, far], ArrowUp: [-far, 0], ArrowDown: [far, 0], Home: [0, -1e9], End: [0, 1e9] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const columns = this.columns().length;
    const start = this.cursor ?? this.selected();
    const clamp = (value, count) => Math.max(0, Math.min(count - 1, value));
    const row = clamp(Math.max(0, start.row) + moves[event.key][0], this.rows.length);
    const column = clamp(Math.max(0, start.column) + moves[event.key][1], columns);
    this.pick(row, column);
    this.cursor = { row, column };
    this.mark(this.cursor);
    const bounds = this.element.getBoundingClientRect();
    const centre = this.centre(row, column);
    const lines = this.describe(row, column);
    tip.show(bounds.left + centre.x, bounds.top + centre.y, lines);
    speak(lines.join(", "));
  }
}
