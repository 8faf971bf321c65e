// The newest decisions with their scores.

import { choice, h, keyed, nodeLink, podLink, time } from "../dom.js";
import { verdict } from "../judgement.js";
import { scoreKey, scoreRows } from "../scores.js";

export const id = "decisions";
export const title = "Decisions";
export const key = "d";

const SHOWN = 100;
const KINDS = [["all", "All"], ["bound", "Bound"], ["refused", "Refused"], ["bind-failed", "Failed"]];

export function mount(main, { store, route, setOption }) {
  let kind = KINDS.some(([one]) => one === route.options.get("verdict")) ? route.options.get("verdict") : "all";
  const list = h("div", { class: "panel" });
  const empty = h("p", { class: "empty" }, "No decision has been heard of yet.");

  function show() {
    const all = Object.entries(store.sections.decisions || {}).filter(([, one]) => kind === "all" || one.verdict === kind);
    all.sort((a, b) => (a[0] < b[0] ? 1 : -1));
    const shown = new Map(all.slice(0, SHOWN).map(([number, one]) => [one, number]));
    keyed(list, [...shown.keys()], (one) => shown.get(one), item);
    if (all.length) empty.remove();
    else list.append(empty);
  }

  main.append(h("div", { class: "head" }, h("h1", {}, "Decisions"), h("p", {}, "Newest first; the chosen node before those it was preferred to")),
    h("div", { class: "controls" }, choice("Show", KINDS, kind, (value) => {
      kind = value;
      setOption("verdict", value, "all");
      show();
    }), scoreKey()), list);
  list.append(empty);
  return { update: (changed) => changed.has("decisions") && show() };
}

function item(one) {
  return h("article", { class: "item" },
    h("header", {}, verdict(one.verdict), h("strong", {}, podLink(one)), one.node && ["→ ", nodeLink(one.node)],
      one.devices.length > 0 && h("span", { class: "dim" }, devices(one.devices)), time(one.time)),
    one.reason && h("p", { class: one.verdict === "bound" ? "dim" : "warn" }, one.reason),
    one.scores.length > 0 && scoreRows(one.scores.slice(0, 4)));
}

export function devices(list) {
  return list.map((one) => {
    const part = one.slice ? `${one.slice.profile} at ${one.slice.start}` : one.milli < 1000 ? `${one.milli / 10} %` : "";
    return [`${one.gpu.slice(0, 12)}…`, part].filter(Boolean).join(" ");
  }).join(", ");
}
