// How GPUs are cut, and what is being changed.

import { cells, choice, h, keyed, nodeLink, plural, podLink, table, tag } from "../dom.js";

export const id = "mig";
export const title = "MIG layouts";
export const key = "m";
export const needs = ["mig", "mig_waiting"];
export const count = (store) => {
  const waiting = store.items("mig_waiting").length;
  return waiting ? { text: `${waiting} waiting`, level: "warn" } : null;
};

const WAITING = [["Pod"], ["Profile"], ["What is done about it"]];
const SHOWS = [["cut", "Cut"], ["changing", "Changing"], ["all", "All"]];
const MOST = 300;

export function mount(main, { store, route, setOption }) {
  let shows = SHOWS.some(([one]) => one === route.options.get("show")) ? route.options.get("show") : "cut";
  const cards = h("div", { class: "cards" });
  const empty = h("p", { class: "empty" }, "None.");
  const note = h("p");
  const waiting = table("Pods that wait for a slice", WAITING);
  const queue = h("section", { class: "panel" }, h("h2", {}, "Pods that wait for a slice"), waiting.root);

  function show() {
    const all = Object.entries(store.sections.mig || {}).map(([gpu, card]) => ({ gpu, card }));
    const cut = all.filter(({ card }) => card.stage !== "GPUDiscovered" || card.slices.length);
    const changing = all.filter(({ card }) => isChanging(card));
    const shown = { all, cut, changing }[shows].sort((a, b) => (a.card.node === b.card.node ? a.card.index - b.card.index : a.card.node < b.card.node ? -1 : 1));
    note.textContent = `${plural(cut.length, "GPU")} of ${all.length} cut, ${changing.length} changing`;
    const byCard = new Map(shown.slice(0, MOST).map((one) => [one.card, one.gpu]));
    keyed(cards, [...byCard.keys()], (card) => byCard.get(card), item);
    if (shown.length) empty.remove();
    else cards.after(empty);
    keyed(waiting.body, store.items("mig_waiting"), (one) => `${one.uid} ${one.profile}`, (one) => cells(WAITING, [podLink(one), one.profile, one.note]));
    queue.hidden = !store.has("mig_waiting");
  }

  main.append(h("div", { class: "head" }, h("h1", {}, "MIG layouts"), note),
    h("div", { class: "controls" }, choice("Show", SHOWS, shows, (value) => {
      shows = value;
      setOption("show", value, "cut");
      show();
    })), queue, cards);
  return { update: (changed) => (changed.has("mig") || changed.has("mig_waiting")) && show() };
}

function isChanging(card) {
  return card.stage === "PartitionCreated" || card.stage === "PartitionDestroyed" || card.slices.some((one) => one.stage === "PartitionCreated" || one.stage === "PartitionDestroyed");
}

function item(card) {
  return h("article", { class: "card" },
    h("h3", {}, h("span", {}, nodeLink(card.node), ` GPU ${card.index}`), tag(card.stage, isChanging(card) ? "warn" : "")),
    h("div", { class: "slices", role: "img", "aria-label": told(card) }, layout(card)),
    h("p", { class: "dim" }, card.model, card.sharing === "none" ? "" : `, shared by ${card.sharing}`),
    card.slices.filter((one) => one.owner).map((one) => h("p", {}, `${one.profile} at ${one.start}: `, podLink(one.owner))),
    card.note && h("p", { class: "warn" }, card.note));
}

/* Slices in their places, with what is free between them. */
function layout(card) {
  const parts = [];
  let at = 0;
  const free = (size) => size > 0 && parts.push(h("span", { class: "free", style: { flex: String(size) } }, ""));
  for (const one of [...card.slices].sort((a, b) => a.start - b.start)) {
    free(one.start - at);
    parts.push(h("span", { "data-stage": one.stage, style: { flex: String(one.slices) }, title: `${one.profile} at ${one.start}: ${one.stage}` }, one.profile));
    at = one.start + one.slices;
  }
  free(card.memory_slices - at);
  return parts;
}

function told(card) {
  return card.slices.length ? card.slices.map((one) => `${one.profile} at ${one.start} ${one.stage}`).join(", ") : `not cut, ${card.memory_slices} slices`;
}
