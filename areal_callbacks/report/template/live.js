// A page that a server sends anew while the run goes on: the same page, with more in it.

/** `show` gets the data of the page; events come with it whenever the run has written something. */
function followRun(show, status) {
  const events = new EventSource("events");
  let latest = Promise.resolve();
  status("waiting for the run");
  events.addEventListener("data", (event) => {
    latest = latest.then(() => show(JSON.parse(event.data))).then(() => status(`live, updated ${new Date().toLocaleTimeString("en-GB")}`));
  });
  events.addEventListener("problem", (event) => status(JSON.parse(event.data)));
  events.addEventListener("open", () => status("live"));
  events.addEventListener("error", () => status("no connection: the page shows what came last"));
}
