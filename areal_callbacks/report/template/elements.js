// The few page elements that everybody uses.

/** An element; what is not a node becomes text, so that no name of a run is ever read as markup. */
function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && !name.includes("-")) node[name] = value;
    else if (value !== undefined) node.setAttribute(name, value);
  }
  node.append(...present(children));
  return node;
}

const present = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined);

const button = (text, onclick, properties = {}) => element("button", { type: "button", onclick, ...properties }, text);

/** Something for screen readers only. */
const unseen = (text) => element("span", { className: "unseen" }, text);

const tip = {
  show(x, y, lines) {
    const node = document.getElementById("tip");
    node.replaceChildren(...lines.map((line, index) => element(index ? "div" : "b", {}, line)));
    node.style.display = "block";
    const { width, height } = node.getBoundingClientRect();
    const left = x + 14 + width > innerWidth ? x - width - 12 : x + 14;
    node.style.left = `${Math.max(4, left)}px`;
    node.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - height - 4))}px`;
  },
  hide() {
    document.getElementById("tip").style.display = "none";
  },
};

let spokenTimer;
/** Told by screen readers once the reader has stopped for a moment. */
function speak(text) {
  clearTimeout(spokenTimer);
  spokenTimer = setTimeout(() => (document.getElementById("spoken").textContent = text), 250);
}

function section(title, ...children) {
  return element("section", { "aria-label": title }, element("h2", {}, title), children);
}

function card(title, note, ...children) {
  const heading = element("h3", {}, title);
  const remark = element("p", { className: "note" }, note ?? "");
  const tools = element("div", { className: "tools" });
  return element("section", { className: "card", "aria-label": title }, element("header", {}, heading, remark, tools), children);
}
