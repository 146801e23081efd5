// The loads of one layer's experts as bars, with the line of the ideal load.

function makeBars(host, data, describe) {
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { stroke: () => colour("muted"), ticks: { show: false }, font };
  const barColours = (u) => u.data[1].map((share, k) => colour(share > u.data[2][k] ? "over" : "under"));
  const plot = new uPlot(
    {
      width: Math.max(200, host.clientWidth),
      height: 170,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      scales: {
        x: { time: false, range: (u) => [-0.6, u.data[0].length - 0.4] },
        y: { range: (u) => [0, 1.08 * Math.max(...u.data[1], ...u.data[2], 1e-9)] },
      },
      axes: [
        { ...axis, size: 24, gap: 3, grid: { show: false }, incrs: [1, 2, 4, 8, 16, 32, 64], values: (_, splits) => splits.map((v) => (Number.isInteger(v) ? String(v) : "")) },
        { ...axis, size: 58, gap: 6, grid: { stroke: () => colour("grid"), width: 1 }, values: (_, splits) => splits.map((v) => `${fixed(v, distance(splits))} %`) },
      ],
      series: [
        {},
        {
          width: 0,
          points: { show: false },
          paths: uPlot.paths.bars({ size: [0.8, 40], align: 0, disp: { fill: { unit: 3, values: barColours }, stroke: { unit: 3, values: barColours } } }),
        },
        { stroke: () => colour("ink"), width: 1.2, dash: [5, 4], points: { show: false } },
      ],
      hooks: { setCursor: [(u) => barTip(u, describe)] },
    },
    data,
    host,
  );
  new ResizeObserver(() => host.clientWidth > 0 && plot.setSize({ width: host.clientWidth, height: 170 })).observe(host);
  themeListeners.push(() => plot.redraw(true, true));
  return plot;
}

function barTip(u, describe) {
  const { idx, left, top } = u.cursor;
  if (left < 0 || idx === null || idx === undefined) {
    if (u.hovered) tip.hide();
    u.hovered = false;
    return;
  }
  const bounds = u.over.getBoundingClientRect();
  u.hovered = true;
  tip.show(bounds.left + left, bounds.top + top, describe(idx));
}
