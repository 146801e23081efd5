// What a chart draws beside its lines: values as recorded below smooth lines, what no line can show, the chosen step.

/** Draws with the plot's own clipping; `paint` gets the canvas context. */
function inPlot(u, paint) {
  const { left, top, width, height } = u.bbox;
  u.ctx.save();
  u.ctx.beginPath();
  u.ctx.rect(left, top, width, height);
  u.ctx.clip();
  paint(u.ctx);
  u.ctx.restore();
}

/** Faint lines through the values as they were recorded. */
function drawRecorded(u, chart) {
  if (!(view.smooth > 0)) return;
  inPlot(u, (context) => {
    context.globalAlpha = 0.28;
    context.lineWidth = devicePixelRatio;
    chart.lines.forEach((line, k) => {
      if (!u.series[k + 1].show) return;
      context.strokeStyle = colour(line.colour);
      context.beginPath();
      let open = false;
      chart.recorded[k].forEach((value, index) => {
        if (value === undefined) return;
        if (value === null || !Number.isFinite(value)) open = false;
        else {
          context[open ? "lineTo" : "moveTo"](u.valToPos(u.data[0][index], "x", true), u.valToPos(value, line.side ?? "y", true));
          open = true;
        }
      });
      context.stroke();
    });
  });
}

/** NaN and infinities as crosses at the edge; zeros of a logarithmic scale as ticks on its foot. */
function drawOddities(u, chart) {
  const size = 3 * devicePixelRatio;
  const { top, height } = u.bbox;
  inPlot(u, (context) => {
    context.lineWidth = 1.5 * devicePixelRatio;
    chart.recorded.forEach((values, k) => {
      if (!u.series[k + 1].show) return;
      context.strokeStyle = colour(chart.lines[k].colour);
      values.forEach((value, index) => {
        const foot = chart.options.log && value <= 0 && Number.isFinite(value);
        if (value === undefined || (Number.isFinite(value) && !foot)) return;
        const x = u.valToPos(u.data[0][index], "x", true);
        const y = value > 0 ? top + size : top + height - size;
        strokeAll(context, x, y, size, foot ? [[0, 1, 0, -1]] : [[-1, -1, 1, 1], [1, -1, -1, 1]]);
      });
    });
  });
}

function strokeAll(context, x, y, size, strokes) {
  context.beginPath();
  for (const [x0, y0, x1, y1] of strokes) {
    context.moveTo(x + x0 * size, y + y0 * size);
    context.lineTo(x + x1 * size, y + y1 * size);
  }
  context.stroke();
}

function drawChosenStep(u, chart) {
  const place = view.step === null ? null : chart.placeOf(view.step);
  if (place === null) return;
  const x = Math.round(u.valToPos(place, "x", true)) + 0.5;
  inPlot(u, (context) => {
    context.strokeStyle = colour("mark");
    context.globalAlpha = 0.6;
    context.lineWidth = devicePixelRatio;
    strokeAll(context, x, u.bbox.top, u.bbox.height, [[0, 0, 0, 1]]);
  });
}
