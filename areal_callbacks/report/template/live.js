// A page that a server sends anew while the run goes on: the same page, with more in it.

/** `show` gets newer data than those numbered `after` whenever the run has written something; `status` gets words about it. */
function followRun(after, show, status) {
  const events = new EventSource(`events?after=${after}`);
  let latest = Promise.resolve();
  events.addEventListener("data", (event) => {
    latest = latest.then(() => show(JSON.parse(event.data))).then(() => status(`live, updated ${new Date().toLocaleTimeString("en-GB")}`));
  });
  events.addEventListener("problem", (event) => status(JSON.parse(event.data)));
  events.addEventListener("open", () => status("live"));
  events.addEventListener("error", () => status("no connection; the page shows what came last"));
}
