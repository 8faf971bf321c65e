// Pods that are placed together, capacity that is kept for later, and what is held for whom.

import { cells, h, keyed, nodeLink, plural, podLink, table, tag, time } from "../dom.js";

export const id = "gangs";
export const title = "Gangs and holds";
export const key = "g";
export const count = (store) => {
  const waiting = store.items("gangs").filter((gang) => gang.phase !== "placed").length;
  return waiting ? { text: waiting, level: "warn" } : null;
};

const GANGS = [["Gang"], ["Phase"], ["Size", "num"], ["Bound", "num"], ["Reserved", "num"], ["Waiting", "num"], ["Priority", "num"], ["Nodes"], ["Why"], ["Given up"]];
const RESERVATIONS = [["Reservation"], ["State"], ["Each"], ["Reserved", "num"], ["From"], ["Until"], ["For"], ["Nodes"]];
const HOLDS = [["Node"], ["What"], ["For"], ["Taken by"], ["Until"], ["Why"]];
const LEVELS = { placed: "good", reserved: "", overdue: "bad", unreadable: "bad" };
const MOST_HOLDS = 300;

export function mount(main, { store }) {
  const parts = [
    part("gangs", "Gangs", GANGS, "There are no gangs.", gangs, gangRow),
    part("reservations", "Reservations", RESERVATIONS, "Nothing is reserved.", reservations, reservationRow),
    part("ledger", "Holds", HOLDS, "Nothing is held.", holds, holdRow),
  ];
  main.append(h("div", { class: "head" }, h("h1", {}, title), h("p", {}, "What is kept for whom, also for pods that others leave for")), ...parts.map((one) => one.root));
  return { update: (changed) => parts.forEach((one) => changed.has(one.section) && one.show(store)) };
}

function part(section, heading, columns, none, items, row) {
  const list = table(heading, columns);
  const note = h("p", { class: "empty" }, "Not known yet.");
  list.root.hidden = true;
  return {
    section,
    root: h("section", { class: "panel" }, h("h2", {}, heading), list.root, note),
    show(store) {
      const all = items(store);
      keyed(list.body, all.slice(0, MOST_HOLDS), (one) => one.key, ({ item }) => row(item));
      list.root.hidden = all.length === 0;
      note.textContent = all.length > MOST_HOLDS ? `${MOST_HOLDS} of ${plural(all.length, "hold")}` : all.length ? "" : none;
      note.hidden = note.textContent === "";
    },
  };
}

const named = (store, section) => Object.entries(store.sections[section] || {}).map(([name, item]) => ({ key: name, item }));
const gangs = (store) => named(store, "gangs").sort((a, b) => (a.item.phase === "placed") - (b.item.phase === "placed") || (a.key < b.key ? -1 : 1));
const reservations = (store) => named(store, "reservations").sort((a, b) => (a.key < b.key ? -1 : 1));
const holds = (store) => store.items("ledger").flatMap((node) => node.holds.map((hold) => ({ key: `${node.node} ${hold.hold}`, item: { ...hold, node: node.node } })));

const nodes = (names) => (names.length ? names.map((name, index) => [index ? ", " : "", nodeLink(name)]) : "–");

const gangRow = (one) => cells(GANGS, [`${one.namespace}/${one.gang}`, tag(one.phase, LEVELS[one.phase] ?? "warn"), one.size || "–", one.bound, one.reserved, one.waiting, one.priority,
  nodes(one.nodes), one.reason, one.deadline ? time(one.deadline) : "–"]);

const reservationRow = (one) => cells(RESERVATIONS, [`${one.namespace}/${one.reservation}`, tag(one.state || "–", one.state === "Active" ? "good" : ""), one.each, `${one.reserved} of ${one.count}`,
  one.start ? time(one.start) : "at once", one.end ? time(one.end) : "–", one.labels.join(", ") || "all pods of the namespace", nodes(one.nodes)]);

const holdRow = (one) => cells(HOLDS, [nodeLink(one.node), what(one.device), owner(one.owner), one.taken_by, one.expires ? time(one.expires) : "when released", one.text]);

function what(device) {
  if (!device) return "the node";
  const part = device.slice ? ` ${device.slice.profile} at ${device.slice.start}` : device.milli < 1000 ? ` ${device.milli / 10} %` : "";
  return h("span", {}, h("span", { class: "mono" }, `${device.gpu.slice(0, 12)}…`), part);
}

function owner(one) {
  if (one.hidden) return "another namespace";
  if (one.kind === "Pod") return podLink({ namespace: one.namespace, pod: one.name });
  return `${one.kind} ${[one.namespace, one.name].filter(Boolean).join("/")}`;
}
