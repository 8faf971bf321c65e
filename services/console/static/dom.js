// Elements and texts. Everything that comes from the cluster becomes a text node or an attribute's value,
// never markup.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, props, ...children) {
  const element = tag.startsWith("svg:")
    ? document.createElementNS(SVG, tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/* Children of `parent` become one element per item, by key; an element is made anew only where its item is another
   object than before, so focus, selection and scrolling stay. */
export function keyed(parent, items, keyOf, make) {
  const had = parent.keyed || new Map();
  const next = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    let entry = had.get(key);
    if (!entry || !same(entry.item, item)) {
      const element = make(item);
      if (entry) {
        const focused = entry.element.contains(document.activeElement) ? focusPath(entry.element) : null;
        if (place === entry.element) place = element;
        entry.element.replaceWith(element);
        if (focused) refocus(element, focused);
      }
      entry = { item, element };
    }
    had.delete(key);
    next.set(key, entry);
    if (entry.element !== place) parent.insertBefore(entry.element, place);
    else place = place.nextSibling;
  }
  for (const entry of had.values()) entry.element.remove();
  parent.keyed = next;
}

function same(a, b) {
  if (a === b) return true;
  return Array.isArray(a) && Array.isArray(b) && a.length === b.length && a.every((one, index) => one === b[index]);
}

function focusables(element) {
  return [...element.querySelectorAll("a[href], button, input, summary, [tabindex]")];
}
function focusPath(element) {
  return { index: focusables(element).indexOf(document.activeElement) };
}
function refocus(element, { index }) {
  focusables(element)[index]?.focus({ preventScroll: true });
}

export function table(caption, columns, className = "") {
  const body = h("tbody");
  const head = columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title));
  const root = h(
    "div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { class: className }, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, head)), body),
  );
  return { root, body };
}

export function cells(columns, values) {
  return h("tr", {}, values.map((value, index) => h("td", { class: columns[index]?.[1] }, value)));
}

export function bar(percent, colour = "var(--c1)") {
  const known = percent !== null && percent !== undefined;
  const width = known ? Math.max(0, Math.min(100, percent)) : 0;
  return h("span", { class: "bar", "aria-hidden": "true" }, h("i", { style: { width: `${width}%`, background: colour } }));
}

export function tag(text, level) {
  return h("span", { class: "tag", "data-level": level }, text);
}

export function tile(name) {
  const value = h("dd", {}, "–");
  return { root: h("div", { class: "tile" }, h("dt", {}, name), value), value };
}

export function setTile(one, text, small = "") {
  const told = `${text} ${small}`;
  if (one.told === told) return;
  one.told = told;
  fill(one.value, text, small && [" ", h("small", {}, small)]);
}

export function choice(name, options, chosen, pick) {
  const buttons = options.map(([value, title]) =>
    h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => {
      buttons.forEach((one) => one.setAttribute("aria-pressed", String(one === buttons[options.findIndex(([each]) => each === value)])));
      pick(value);
    } }, title));
  return h("fieldset", { class: "choice" }, h("legend", {}, name), h("span", {}, buttons));
}

export const nodeLink = (node) => (node ? h("a", { href: `#/node/${encodeURIComponent(node)}` }, node) : h("span", { class: "dim" }, "–"));

export function podLink(pod) {
  if (!pod) return h("span", { class: "dim" }, "–");
  if (pod.hidden) return h("span", { class: "dim" }, "a pod of another namespace");
  if (!pod.pod) return h("span", { class: "dim" }, "no pod");
  const place = `#/pod/${encodeURIComponent(pod.namespace)}/${encodeURIComponent(pod.pod)}`;
  return h("a", { href: place }, `${pod.namespace}/${pod.pod}`);
}

export const percent = (value) => (value === null || value === undefined ? "–" : `${Math.round(value)} %`);

export function gib(mib) {
  if (mib === null || mib === undefined) return "–";
  if (mib >= 1024 * 1024) return `${(mib / 1024 / 1024).toFixed(1)} TiB`;
  return mib >= 10240 ? `${Math.round(mib / 1024)} GiB` : mib >= 1024 ? `${(mib / 1024).toFixed(1)} GiB` : `${mib} MiB`;
}

export function money(micro) {
  if (micro === null || micro === undefined) return "–";
  const usd = micro / 1e6;
  const size = Math.abs(usd);
  const digits = size >= 1000 ? 0 : size >= 0.01 || size === 0 ? 2 : 4;
  return usd.toLocaleString("en-US", { style: "currency", currency: "USD", minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function ago(text) {
  if (!text) return "–";
  const seconds = (Date.now() - Date.parse(text)) / 1000;
  return seconds < 0 ? `in ${span(-seconds)}` : seconds < 2 ? "now" : `${span(seconds)} ago`;
}

export function span(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

export function time(text) {
  return h("time", { datetime: text, title: text, "data-ago": text }, ago(text));
}

/* Every element of `time` says anew how long ago it is. */
export function refreshTimes(root) {
  for (const one of root.querySelectorAll("time[data-ago]")) {
    const told = ago(one.dataset.ago);
    if (one.textContent !== told) one.textContent = told;
  }
}

export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en-US")} ${count === 1 ? one : many}`;
}
