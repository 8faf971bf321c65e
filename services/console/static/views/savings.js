// Pods that hold more than they use, and the patch that changes it.

import { cells, fill, h, keyed, money, percent, plural, podLink, table } from "../dom.js";

export const id = "savings";
export const title = "Recommendations";
export const key = "r";
export const needs = ["waste"];
export const count = (store) => ({ text: store.items("waste").length });

const COLUMNS = [["Pod"], ["Class"], ["Waste", "num"], ["Use", "num"], ["Now"], ["Better"], ["Saves a month", "num"], ["Sure", "num"], ["Patch"]];

export function mount(main, { store, route, setOption }) {
  const list = table("Pods that hold more than they use", COLUMNS);
  const note = h("p");
  const empty = h("p", { class: "empty" }, "No pod is known to hold much more than it uses.");
  const patch = h("section", { class: "panel", hidden: true, "aria-live": "polite" });
  let chosen = route.options.get("pod") || "";

  async function choose(namespace, name) {
    chosen = `${namespace}/${name}`;
    setOption("pod", chosen, "");
    patch.hidden = false;
    fill(patch, h("h2", {}, chosen), h("p", { class: "dim" }, "Asking …"));
    try {
      const answer = await fetch(`/api/recommendation?${new URLSearchParams({ namespace, name })}`);
      const told = await answer.json();
      fill(patch, h("h2", {}, chosen), answer.ok ? recommendation(told) : h("p", { class: "warn" }, told.error));
    } catch {
      fill(patch, h("h2", {}, chosen), h("p", { class: "bad" }, "The server does not answer."));
    }
    patch.scrollIntoView({ block: "nearest" });
  }

  main.append(h("div", { class: "head" }, h("h1", {}, "Recommendations"), note), patch, h("div", { class: "panel" }, list.root, empty));
  const [namespace, name] = chosen.split("/");
  if (name) choose(namespace, name);
  return {
    update(changed) {
      if (!changed.has("waste")) return;
      const pods = store.items("waste").sort((a, b) => b.score - a.score || (a.uid < b.uid ? -1 : 1));
      const saving = pods.reduce((sum, one) => sum + (one.saving || 0), 0);
      note.textContent = pods.length ? `${plural(pods.length, "pod")}, ${saving ? `together ${money(saving)} a month` : "without a price yet"}` : "";
      empty.hidden = pods.length > 0;
      list.root.hidden = pods.length === 0;
      keyed(list.body, pods, (one) => one.uid, (one) => row(one, choose));
    },
  };
}

function row(one, choose) {
  const parts = Object.entries(one.parts).filter(([, points]) => points > 0).map(([part, points]) => `${part} ${points}`).join(", ");
  return cells(COLUMNS, [podLink(one), one.class, h("span", { title: parts }, one.score.toFixed(0)), percent(one.utilization), one.now,
    [one.recommended || "–", one.reason && h("div", { class: "dim" }, one.reason)], money(one.saving), percent(one.confidence),
    h("button", { class: "button", type: "button", onclick: () => choose(one.namespace, one.pod), "aria-label": `Patch for ${one.namespace}/${one.pod}` }, "Patch")]);
}

function recommendation(told) {
  return [
    h("p", {}, told.reason),
    told.yaml
      ? [h("p", {}, told.is_patch ? `Strategic merge patch of ${told.target}` : `A new ${told.target}`, told.saving !== null && [", saves ", h("strong", {}, money(told.saving)), " a month"]), h("pre", { tabindex: "0", "aria-label": "Patch" }, told.yaml)]
      : h("p", { class: "dim" }, "There is nothing to apply."),
    told.applied.map((one) => h("p", { class: "dim" }, `Applied before: ${one.before} to ${one.after}, expected ${money(one.expected)}, really ${money(one.actual)} a month.`)),
  ];
}
