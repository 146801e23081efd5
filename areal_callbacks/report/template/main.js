// The page: its order, what is drawn first, and what happens when it is printed.

class Page {
  constructor(report) {
    this.header = element("header", { className: "page" });
    this.findings = element("div");
    this.toolbar = new Toolbar();
    this.overview = element("div");
    this.grids = { Learning: new PanelGrid(LEARNING), Experts: new PanelGrid(EXPERTS), Speed: new PanelGrid(SPEED), Policy: new PanelGrid(POLICY) };
    this.balance = new Balance();
    this.scalarHistories = new ScalarHistories();
    this.explorer = new Explorer();
    this.settings = element("div");
    const experts = section("Experts", this.balance.element, this.scalarHistories.element, this.grids.Experts.element);
    experts.classList.add("balance");
    report.append(
      this.header, this.findings, this.overview, this.toolbar.element,
      section("Learning", this.grids.Learning.element),
      experts,
      section("Speed", this.grids.Speed.element),
      section("Policy", this.grids.Policy.element),
      section("Everything", element("div", { className: "stacked" }, this.explorer.element, this.settings)),
    );
  }

  /** Also after new exports: what the reader has chosen stays. */
  async show(data) {
    const runs = await Promise.all(data.runs.map((run, number) => Run.load(run, number, data)));
    const allKeys = [...new Set(runs.flatMap((run) => [...run.lines.keys()]))].sort();
    this.#showTop(runs);
    this.toolbar.show(runs);
    this.grids.Learning.show(runs, allKeys);
    this.balance.show(runs, await Promise.all(runs.map((run) => run.loads)));
    this.scalarHistories.show(runs);
    for (const name of ["Experts", "Speed", "Policy"]) this.grids[name].show(runs, allKeys);
    this.explorer.show(runs, allKeys);
    this.settings.replaceChildren(...present([configuration(runs)]));
    for (const part of document.querySelectorAll("main > section")) part.hidden = !part.querySelector(".card:not([hidden])");
  }

  #showTop(runs) {
    const title = element("h1", {}, runs.map((run) => run.name).join(" · "));
    const facts = runs.map((run) => element("p", { className: "facts" }, runs.length > 1 ? element("span", {}, runSwatch(run), element("b", {}, run.name)) : null, runFacts(run).map((fact) => element("span", {}, fact))));
    this.header.replaceChildren(element("p", { className: "brand" }, runs.length > 1 ? "Training report, comparison" : "Training report"), title, ...facts);
    this.findings.replaceChildren(...present([findingsStrip(runs)]));
    this.overview.replaceChildren(runs.length === 1 ? tiles(runs[0]) : comparison(runs));
  }
}

async function main() {
  const report = document.getElementById("report");
  const data = JSON.parse(document.getElementById("data").textContent);
  const page = new Page(report);
  await page.show(data);
  if (data.live) followRun(data.live, (newer) => page.show(newer), (text) => Object.assign(page.toolbar.live, { textContent: text, hidden: false }));
  report.setAttribute("aria-busy", "false");
  performance.mark("report-drawn");
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
