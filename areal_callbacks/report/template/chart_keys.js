// Charts without a mouse: arrow keys, and what screen readers tell.

/** A line in a sentence: its ends and its extremes. */
function spokenSummary(lines) {
  return lines.slice(0, 6).map((line) => {
    const format = formatFor(line.key);
    const finite = line.y.filter(Number.isFinite);
    if (finite.length === 0) return `${line.label}: no finite value.`;
    const [least, most] = finite.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
    return `${line.label}: first ${format(line.y[0])}, last ${format(line.y.at(-1))}, between ${format(least)} and ${format(most)}.`;
  }).join(" ");
}

function makeReachable(chart) {
  const { host } = chart;
  host.tabIndex = 0;
  host.setAttribute("role", "group");
  host.addEventListener("keydown", (event) => {
    if (event.target !== host) return;
    if (["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) moveCursor(chart, event);
    else if (event.key === "Enter" && chart.plot.cursor.idx != null) choose({ step: chart.stepAt(chart.plot.data[0][chart.plot.cursor.idx]) });
    else return;
    event.preventDefault();
  });
  host.addEventListener("blur", () => chart.plot.setCursor({ left: -10, top: -10 }));
}

function makeLegendReachable(host) {
  for (const label of host.querySelectorAll(".u-series:not(:first-child) th")) {
    label.tabIndex = 0;
    label.setAttribute("role", "button");
    label.setAttribute("aria-label", `show or hide ${label.textContent}`);
    label.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      label.click();
    });
  }
}

function moveCursor({ host, plot }, event) {
  const last = plot.data[0].length - 1;
  const at = plot.cursor.idx ?? last;
  const move = event.shiftKey ? 10 : 1;
  const targets = { ArrowLeft: at - move, ArrowRight: at + move, Home: 0, End: last };
  const index = Math.max(0, Math.min(last, targets[event.key]));
  plot.setCursor({ left: plot.valToPos(plot.data[0][index], "x"), top: plot.over.clientHeight / 2 });
  speak([...host.querySelectorAll(".u-series")].map((entry) => entry.textContent).join(", "));
}
