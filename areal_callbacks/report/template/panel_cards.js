// Cards with the charts of a section.

const MOST_LINES = 12;

/** The lines of a panel in the runs that have them. */
function panelLines(panel, runs, allKeys) {
  const several = runs.length > 1;
  const wanted = panel.keys(allKeys).filter(({ key, single }) => runs.some((run) => run.has(key)) && !(single && several));
  const entries = withUniqueLabels(wanted).slice(0, MOST_LINES);
  return entries.flatMap((entry, index) =>
    runs
      .filter((run) => run.has(entry.key))
      .map((run) => ({
        ...entry,
        run,
        ...(entry.value?.(run) ?? run.series(entry.key)),
        label: several ? ofRun(run, entries.length > 1 ? entry.label : "") : entry.label,
        colour: several ? runColour(run) : (entry.colour ?? `series-${(index % 8) + 1}`),
        fill: several ? undefined : entry.fill,
        dash: several ? DASHES[index % DASHES.length] : entry.dash,
      })),
  );
}

/** Single values at the end, like the trainer's mean of all losses, say nothing beside a curve. */
function withoutSinglePoints(lines) {
  const curves = lines.filter((line) => line.y.length > 1);
  return curves.length > 0 ? curves : lines;
}

/** A grid of panels, which appear once a run has their numbers. */
class PanelGrid {
  constructor(panels) {
    this.panels = panels;
    this.charts = new Map();
    this.element = element("div", { className: "grid" });
  }

  /** Also after new exports. Cards get their charts once they are in the page and have a width. */
  show(runs, allKeys) {
    for (const panel of this.panels) {
      const lines = withoutSinglePoints(panelLines(panel, runs, allKeys));
      if (lines.length === 0) continue;
      if (this.charts.has(panel)) this.charts.get(panel).setLines(lines);
      else this.#add(panel, lines);
    }
  }

  #add(panel, lines) {
    const host = element("div");
    const made = card(panel.title, panel.note, host);
    const later = this.panels.slice(this.panels.indexOf(panel) + 1).find((other) => this.charts.has(other));
    this.element.insertBefore(made, later ? this.charts.get(later).host.parentElement : null);
    const chart = new StepChart(host, lines, { ...panel.options, title: panel.title, key: panel.options?.key ?? lines[0].key });
    this.charts.set(panel, chart);
    addDownloads(made, panel.title, () => chart.lines);
  }
}
