// The page: its order, and what happens when it is printed.

async function main() {
  const report = document.getElementById("report");
  const data = JSON.parse(document.getElementById("data").textContent);
  const runs = await Promise.all(data.runs.map((run, number) => Run.load(run, number, data)));
  report.append(pageHeader(runs));
  const balance = element("section", { className: "balance", "aria-label": "MoE balance" });
  const panels = element("section", { className: "grid", "aria-label": "Charts" });
  const histories = element("section", { className: "balance", "aria-label": "MoE balance from scalars" });
  report.append(balance, histories, panels);
  if (runs.some((run) => run.stacks.length > 0)) {
    const loads = await Promise.all(runs.map((run) => run.loads));
    new Balance(balance, runs, loads);
  }
  addScalarHistories(histories, runs);
  addPanels(panels, runs);
  new Explorer(panels, runs);
  const settings = configuration(runs);
  if (settings) panels.append(settings);
  for (const section of [balance, histories]) if (section.children.length === 0) section.remove();
  report.setAttribute("aria-busy", "false");
  performance.mark("report-drawn");
}

function pageHeader(runs) {
  const brand = element("p", { className: "brand" }, runs.length > 1 ? "Training report, comparison" : "Training report");
  if (runs.length === 1) {
    const facts = element("p", { className: "facts" }, runFacts(runs[0]).map((fact) => element("span", {}, fact)));
    return element("header", { className: "page" }, brand, element("h1", {}, runs[0].name), facts, tiles(runs[0]));
  }
  const facts = runs.map((run) => element("p", { className: "facts" }, element("span", {}, runSwatch(run), element("b", {}, run.name)), runFacts(run).map((fact) => element("span", {}, fact))));
  return element("header", { className: "page" }, brand, element("h1", {}, runs.map((run) => run.name).join(" · ")), facts, comparison(runs));
}

function setPrinting(on) {
  printing = on;
  document.documentElement.classList.toggle("printing", on);
  stepCharts.forEach((chart) => chart.resize());
  themeChanged();
}

addEventListener("beforeprint", () => setPrinting(true));
addEventListener("afterprint", () => setPrinting(false));

main().catch((error) => {
  const report = document.getElementById("report");
  report.setAttribute("aria-busy", "false");
  report.append(element("p", { className: "failure" }, `This report could not be drawn: ${error.message}`));
  throw error;
});
