// Pods that wait for GPUs, why, and what would help.

import { h, keyed, plural, podLink, tag, time } from "../dom.js";
import { judgement } from "../judgement.js";

export const id = "pending";
export const title = "Pending pods";
export const key = "p";
export const count = (store) => {
  if (!store.sections.pending) return null;
  const waiting = store.items("pending").length;
  return waiting ? { text: waiting, level: "warn" } : { text: 0 };
};

const MOST = 200;

export function mount(main, { store }) {
  const list = h("div", { class: "panel" });
  const note = h("p");
  main.append(h("div", { class: "head" }, h("h1", {}, "Pending pods"), note), list);
  const empty = h("p", { class: "empty" }, "It is not known yet which pods wait.");
  list.append(empty);
  return {
    update(changed) {
      if (!changed.has("pending")) return;
      const pods = store.items("pending").sort((a, b) => (a.since < b.since ? -1 : 1));
      note.textContent = pods.length ? `${plural(pods.length, "pod")}, the longest wait first${pods.length > MOST ? `; ${MOST} are shown` : ""}` : "";
      keyed(list, pods.slice(0, MOST), (pod) => pod.uid, item);
      empty.textContent = "No pod waits for a GPU.";
      if (!pods.length) list.append(empty);
      else empty.remove();
    },
  };
}

function item(pod) {
  return h("article", { class: "item" },
    h("header", {}, h("strong", {}, podLink(pod)), pod.request && tag(pod.request), pod.standing === "fits" && tag("a node would take it", "good"), time(pod.since)),
    pod.explained ? judgement(pod) : h("p", { class: "dim" }, pod.last_reason || "Being explained …"));
}
