// Scores of nodes as bars of their parts.

import { h, nodeLink } from "./dom.js";

// The weights of docs/architecture.md's score; what is shown is each part's own 0 to 100, so bars are scaled by them.
const PARTS = [["topology", 0.4, "var(--c1)", "links"], ["resource", 0.35, "var(--c2)", "fit"], ["balance", 0.25, "var(--c3)", "balance"]];

export function scoreKey() {
  return h("div", {}, PARTS.map(([, , colour, name]) => h("span", { class: "key" }, h("i", { style: { background: colour } }), name)));
}

export function scoreRows(scores) {
  return h("div", { class: "scores" }, scores.map((score, index) => h("div", { class: `score ${index === 0 ? "best" : ""}` },
    h("span", { class: "clip" }, nodeLink(score.node)),
    h("span", { class: "parts", role: "img", "aria-label": told(score), title: told(score) },
      PARTS.map(([name, weight, colour]) => h("i", { style: { width: `${score[name] * weight}%`, background: colour } }))),
    h("span", { class: "num" }, score.total.toFixed(1)))));
}

function told(score) {
  const hint = score.hint ? `, advice ${score.hint > 0 ? "+" : ""}${score.hint.toFixed(1)}` : "";
  return `links ${score.topology.toFixed(0)}, fit ${score.resource.toFixed(0)}, balance ${score.balance.toFixed(0)}${hint}`;
}
