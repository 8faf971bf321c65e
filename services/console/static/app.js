// The frame: which view is shown, what is in the rail, the search, the keyboard and the theme.

import { fill, h, plural, refreshTimes } from "./dom.js";
import { showIncidents } from "./incidents.js";
import { Search } from "./search.js";
import { Store } from "./store.js";
import { startTheme } from "./theme.js";
import * as autoscaler from "./views/autoscaler.js";
import * as cluster from "./views/cluster.js";
import * as cost from "./views/cost.js";
import * as decisions from "./views/decisions.js";
import * as gangs from "./views/gangs.js";
import * as mig from "./views/mig.js";
import * as node from "./views/node.js";
import * as pending from "./views/pending.js";
import * as pod from "./views/pod.js";
import * as savings from "./views/savings.js";
import * as workloads from "./views/workloads.js";

// A view has: id, title, mount(main, context) -> {update(changed, set), end()}; and, to be in the rail, key, count(store)
// and needs, the sections of which one must be there.
const VIEWS = [cluster, pending, decisions, gangs, mig, workloads, cost, savings, autoscaler, node, pod];
const UPDATE_MS = 250;

const store = new Store();
const main = document.getElementById("main");
const context = { store, go, route: { id: "", parts: [], options: new URLSearchParams() }, setOption };
let shown = null;
let pendingChange = new Set();
let pendingItems = {};
let timer = 0;

function parse() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [id = "", ...parts] = path.split("/").map(decode);
  return { id: id || "cluster", parts, options: new URLSearchParams(query) };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function go(place) {
  location.hash = place;
}

/* Part of the address, so that what is seen can be shared; it makes no new entry in the history. */
function setOption(name, value, usual) {
  const options = context.route.options;
  if (value === usual) options.delete(name);
  else options.set(name, value);
  const [path] = location.hash.split("?");
  history.replaceState(null, "", `${path || "#/cluster"}${options.size ? `?${options}` : ""}`);
}

function show() {
  const route = parse();
  const view = VIEWS.find((one) => one.id === route.id);
  context.route = route;
  if (shown) shown.end?.();
  shown = null;
  fill(main);
  main.scrollTop = 0;
  if (!view) {
    fill(main, h("h1", {}, "There is no such page"), h("p", {}, h("a", { href: "#/cluster" }, "Go to the cluster")));
    return;
  }
  document.title = `${view.name ? view.name(route) : view.title} · GPULoom`;
  shown = view.mount(main, context);
  shown.update(new Set(Object.keys(store.sections)), undefined);
  showRail();
}

function showRail() {
  const rail = VIEWS.filter((view) => view.key && (!view.needs || view.needs.some((section) => store.has(section) || view.id === context.route.id || view.always)));
  const signature = JSON.stringify(rail.map((view) => [view.id, view.count?.(store), view.id === context.route.id]));
  if (showRail.told === signature) return;
  showRail.told = signature;
  fill(document.getElementById("views"), rail.map((view) => {
    const count = view.count?.(store);
    return h("li", {}, h("a", { href: `#/${view.id}`, "aria-current": view.id === context.route.id ? "page" : null },
      view.title, count ? h("span", { class: "count", "data-level": count.level }, count.text) : null));
  }));
}

function update() {
  timer = 0;
  const [changed, items] = [pendingChange, pendingItems];
  pendingChange = new Set();
  pendingItems = {};
  shown?.update(changed, items);
  showRail();
  showIncidents(document.getElementById("incidents"), store);
  showStanding();
}

function showStanding() {
  const live = document.getElementById("live");
  const words = { live: "live", lost: "connection lost, trying again", connecting: "connecting" };
  const text = words[store.standing];
  if (live.dataset.is !== store.standing) {
    live.dataset.is = store.standing;
    live.textContent = text;
  }
}

store.onChange((changed, items) => {
  for (const section of changed) {
    pendingChange.add(section);
    if (pendingItems === undefined || !items) pendingItems = undefined;
    else pendingItems[section] = Object.assign(pendingItems[section] || {}, items[section]);
  }
  if (!timer) timer = setTimeout(() => requestAnimationFrame(update), UPDATE_MS);
});

const KEYS = [
  ["/", "search", () => document.getElementById("search").focus()],
  ["t", "change the theme", () => document.getElementById("theme").click()],
  ["?", "this help", () => showKeys()],
  ...VIEWS.filter((view) => view.key).map((view) => [view.key, view.title.toLowerCase(), () => go(`#/${view.id}`)]),
];

function showKeys() {
  const dialog = document.getElementById("keys");
  fill(dialog, h("h2", { id: "keys-title" }, "Keyboard"),
    h("dl", { class: "facts" }, KEYS.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)]),
      h("dt", {}, h("kbd", {}, "←↑↓→")), h("dd", {}, "move between GPUs of the heat map; Enter opens the node")),
    h("form", { method: "dialog" }, h("p", {}, h("button", { class: "button", autofocus: true }, "Close"))));
  dialog.showModal();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  const found = KEYS.find(([key]) => key === event.key);
  if (!found) return;
  event.preventDefault();
  found[2]();
}

async function showViewer() {
  const answer = await fetch("/api/viewer");
  if (!answer.ok) return;
  const viewer = await answer.json();
  const who = document.getElementById("who");
  if (viewer.namespaces) who.append(h("span", { class: "tag", title: viewer.namespaces.join(", ") }, plural(viewer.namespaces.length, "namespace")));
  if (!viewer.can_log_out) return;
  who.append(h("span", { title: viewer.name }, viewer.name, " "),
    h("form", { method: "post", action: "/logout", style: { display: "inline" } }, h("button", { class: "quiet" }, "Log out")));
}

startTheme(document.getElementById("theme"), () => shown?.update(new Set(Object.keys(store.sections)), undefined, true));
new Search(store, go).attach(document.getElementById("search"), document.getElementById("found"), document.getElementById("search-form"));
document.addEventListener("keydown", onKey);
document.getElementById("help").addEventListener("click", showKeys);
window.addEventListener("hashchange", () => {
  show();
  // The event comes a moment after the key: who types somewhere by now goes on there.
  if (!document.activeElement?.closest("input, select, textarea, dialog")) main.focus({ preventScroll: true });
});
setInterval(() => {
  store.checkHeard();
  refreshTimes(document);
  showStanding();
}, 1000);
show();
showViewer();
store.start();
