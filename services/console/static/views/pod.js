// One pod: why it is where it is, or nowhere. Asked of the server when somebody opens it.

import { fill, h, keyed, nodeLink, podLink, tag, time } from "../dom.js";
import { judgement, verdict } from "../judgement.js";
import { scoreKey, scoreRows } from "../scores.js";
import { share } from "./cluster.js";
import { devices } from "./decisions.js";

export const id = "pod";
export const title = "Pod";
export const name = (route) => route.parts.join("/");

const AGAIN_MS = 5000;

export function mount(main, { store, route }) {
  const [namespace = "", pod = ""] = route.parts;
  const standing = h("div", { role: "status" }, h("p", { class: "dim" }, "Asking …"));
  const held = h("div");
  const decisions = h("div");
  let over = false;
  let timer = 0;

  async function ask() {
    const query = new URLSearchParams({ namespace, name: pod });
    try {
      const answer = await fetch(`/api/explain?${query}`);
      const told = await answer.json();
      if (over) return;
      show(answer.ok ? told : null, told.error);
    } catch {
      if (!over) fill(standing, h("p", { class: "bad" }, "The server does not answer."));
    }
    timer = setTimeout(ask, AGAIN_MS);
  }

  function show(told, error) {
    const key = JSON.stringify(told || error);
    if (show.told === key) return;
    show.told = key;
    if (!told) {
      fill(standing, h("p", { class: "warn" }, error));
      return;
    }
    fill(standing, h("p", {}, tag(told.standing, told.standing === "bound" ? "good" : "warn"), told.node && [" on ", nodeLink(told.node)]),
      told.request && h("p", {}, "Asks for ", told.request), told.devices.length > 0 && h("p", { class: "mono" }, devices(told.devices)), judgement(told));
    fill(decisions, told.decisions.length ? scoreKey() : h("p", { class: "empty" }, "None is remembered."),
      told.decisions.map((one) => h("article", { class: "item" }, h("header", {}, verdict(one.verdict), one.node && nodeLink(one.node), time(one.time)),
        one.reason && h("p", {}, one.reason), scoreRows(one.scores))));
  }

  function showHeld() {
    const found = store.items("nodes").flatMap((node) => node.gpus.flatMap((gpu) => gpu.pods
      .filter((one) => one.namespace === namespace && one.pod === pod).map((one) => [node, gpu, one])));
    keyed(held, found, ([node, gpu, one]) => `${node.node} ${gpu.uuid} ${one.container} ${one.slice?.start}`, ([node, gpu, one]) =>
      h("p", {}, nodeLink(node.node), ` GPU ${gpu.index} ${gpu.model} `, h("span", { class: "dim" }, share(one))));
    if (!found.length) fill(held, h("p", { class: "empty" }, "No GPU right now."));
    if (!found.length) held.keyed = undefined;
    else held.querySelector(".empty")?.remove();
  }

  main.append(h("div", { class: "head" }, h("h1", {}, `${namespace}/${pod}`)),
    h("div", { class: "row" },
      h("section", { class: "panel" }, h("h2", {}, "Where, and why"), standing),
      h("section", { class: "panel" }, h("h2", {}, "Holds"), held)),
    h("section", { class: "panel" }, h("h2", {}, "Decisions"), decisions));
  ask();
  return {
    update: (changed) => changed.has("nodes") && showHeld(),
    end() {
      over = true;
      clearTimeout(timer);
    },
  };
}
