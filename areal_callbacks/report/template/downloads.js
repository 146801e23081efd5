// What a card shows, as a table and as a picture.

function download(name, type, parts) {
  const url = URL.createObjectURL(new Blob(parts, { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const fileName = (title, ending) => `${title.replace(/[^\p{L}\p{N}._-]+/gu, "_").replace(/^_+|_+$/g, "")}.${ending}`;

/** Buttons in the corner of a card; `lines` gives [{run, key, at, y}] for the table, or nothing for a card that has none. */
function addDownloads(made, title, lines = null) {
  const table = lines && button("CSV", () => download(fileName(title, "csv"), "text/csv", [toCsv(lines())]), { "aria-label": `${title} as CSV` });
  const picture = button("PNG", () => toPng(made, title), { "aria-label": `${title} as PNG` });
  made.querySelector(".tools").append(...[table, picture].filter(Boolean));
}

const csvField = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
const csvNumber = (value) => (value === undefined ? "" : Number.isFinite(value) ? String(value) : { NaN: "nan", Infinity: "inf", "-Infinity": "-inf" }[value]);

/** A row a step of a run, a column a key, under its whole name. */
function toCsv(lines) {
  const keys = [...new Set(lines.map((line) => line.key))];
  const runs = [...new Set(lines.map((line) => line.run))];
  const rows = [["run", "step", ...keys].map(csvField)];
  for (const run of runs) {
    const own = keys.map((key) => lines.find((line) => line.run === run && line.key === key));
    const columns = own.map((line) => new Map(line?.at.map((index, k) => [index, line.y[k]])));
    const used = [...new Set(own.flatMap((line) => line?.at ?? []))].sort((a, b) => a - b);
    for (const index of used) rows.push([csvField(run.name), run.steps[index], ...columns.map((column) => csvNumber(column.get(index)))]);
  }
  return rows.map((row) => `${row.join(",")}\n`).join("");
}

/** The card as it is on the screen: its canvases, and its texts where they stand. */
function toPng(made, title) {
  const bounds = made.getBoundingClientRect();
  const factor = Math.max(2, devicePixelRatio);
  const canvas = element("canvas", { width: Math.round(bounds.width * factor), height: Math.round(bounds.height * factor) });
  const context = canvas.getContext("2d");
  context.scale(factor, factor);
  context.fillStyle = colour("card");
  context.fillRect(0, 0, bounds.width, bounds.height);
  for (const part of made.querySelectorAll("canvas")) {
    const { left, top, width, height } = part.getBoundingClientRect();
    if (width > 0 && part.width > 0) context.drawImage(part, left - bounds.left, top - bounds.top, width, height);
  }
  made.querySelectorAll(".scale, .u-marker, .dead i").forEach((part) => drawSwatch(context, part, bounds));
  drawTexts(context, made, bounds);
  canvas.toBlob((picture) => download(fileName(title, "png"), "image/png", [picture]));
}

function drawTexts(context, made, bounds) {
  const texts = document.createTreeWalker(made, NodeFilter.SHOW_TEXT);
  context.textBaseline = "middle";
  while (texts.nextNode()) {
    const node = texts.currentNode;
    if (!node.data.trim() || node.parentElement.closest(".tools, .unseen, select, button")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const { left, top, width, height } = range.getBoundingClientRect();
    const style = getComputedStyle(node.parentElement);
    if (width === 0 || style.visibility === "hidden") continue;
    context.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    context.fillStyle = style.color;
    context.fillText(node.data, left - bounds.left, top - bounds.top + height / 2);
  }
}

function drawSwatch(context, part, bounds) {
  const { left, top, width, height } = part.getBoundingClientRect();
  const [x, y] = [left - bounds.left, top - bounds.top];
  const style = getComputedStyle(part);
  if (part.matches(".scale")) {
    const stops = MAPS[part.dataset.map][isDark() ? "dark" : "light"];
    const shades = context.createLinearGradient(x, 0, x + width, 0);
    stops.forEach((stop, k) => shades.addColorStop(k / (stops.length - 1), `#${stop}`));
    context.fillStyle = shades;
    context.fillRect(x, y, width, height);
  } else if (part.matches(".u-marker")) {
    context.fillStyle = style.borderBottomColor;
    context.fillRect(x, y + height - 2, width, 2);
  } else {
    context.fillStyle = style.backgroundColor;
    context.fillRect(x, y, width, height);
  }
}
