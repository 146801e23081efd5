// What the reader has chosen, kept in the page's address: a link shows somebody else the same.

const AXES = {
  step: { title: "step", format: (value) => grouped(value) },
  tokens: { title: "tokens", format: compact },
  hours: { title: "hours", format: (value) => `${threeDigits(value)} h` },
};

/** layer: its number in the model; scalars: chosen in the list of all; smooth: 0 to 0.99. */
const NOTHING_CHOSEN = { step: null, layer: null, stack: null, x: "step", smooth: 0, scalars: [] };
const view = { ...NOTHING_CHOSEN, ...readAddress() };
const viewListeners = [];

/** Change the view; listeners are told which of its parts did change. */
function choose(changes) {
  const changed = Object.keys(changes).filter((part) => String(view[part]) !== String(changes[part]));
  if (changed.length === 0) return;
  Object.assign(view, changes);
  viewListeners.forEach((listener) => listener(new Set(changed)));
  writeAddressSoon();
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const found = {};
  for (const part of ["step", "layer", "smooth"])
    if (given.has(part) && Number.isFinite(Number(given.get(part)))) found[part] = Number(given.get(part));
  if (given.has("stack")) found.stack = given.get("stack");
  if (given.get("x") in AXES) found.x = given.get("x");
  if (given.has("scalar")) found.scalars = given.getAll("scalar");
  if ("smooth" in found) found.smooth = Math.max(0, Math.min(0.99, found.smooth));
  return found;
}

/** The part of an address that leads to a view. */
function addressOf(chosen) {
  const parts = new URLSearchParams();
  for (const part of ["step", "layer", "stack", "x", "smooth"])
    if (chosen[part] !== undefined && chosen[part] !== NOTHING_CHOSEN[part]) parts.set(part, chosen[part]);
  for (const scalar of chosen.scalars ?? []) parts.append("scalar", scalar);
  return `#${parts}`;
}

let addressTimer;
function writeAddressSoon() {
  clearTimeout(addressTimer);
  addressTimer = setTimeout(writeAddress, 150);
}

/** Pages inside of notebooks have no address of their own, and may not set one. */
function writeAddress() {
  try {
    history.replaceState(null, "", addressOf(view));
  } catch {
    removeEventListener("hashchange", readHash);
  }
}

function readHash() {
  if (location.hash.includes("=")) choose(readAddress());
}

addEventListener("hashchange", readHash);
