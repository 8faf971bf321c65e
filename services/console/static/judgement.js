// What all nodes say about a pod: reasons, the nearest miss, and what would make it fit.

import { h, nodeLink, plural, tag, time } from "./dom.js";
import { scoreKey, scoreRows } from "./scores.js";

export function judgement(pod) {
  const judged = pod.judgement;
  return [
    pod.problem && h("p", { class: "bad" }, pod.problem),
    pod.note && h("p", { class: "dim" }, pod.note),
    (pod.warnings || []).map((text) => h("p", { class: "warn" }, text)),
    pod.quarantine && h("p", { class: "warn" }, `Not tried again until `, time(pod.quarantine.until), ` after ${plural(pod.quarantine.failures, "failed bind")}.`),
    judged && judged.reasons.length > 0 && h("ul", { class: "reasons" }, judged.reasons.map((one) =>
      h("li", {}, h("b", { class: "num" }, one.nodes), ` ${one.text} `, one.resolvable && h("span", { class: "dim" }, "(evicting pods could change it)")))),
    judged && judged.near.length > 0 && h("p", {}, h("strong", {}, "Nearest miss: "), judged.near.slice(0, 3).map((one, index) => [index ? "; " : "", nodeLink(one.node), ` ${one.has}`])),
    judged && judged.changes.length > 0 && h("p", {}, h("strong", {}, "It would fit: "), judged.changes.slice(0, 3).map((one, index) => [index ? ", or " : "", one.change, ` (${plural(one.nodes, "node")}, best `, nodeLink(one.node), ")"])),
    judged && judged.offers.length > 0 && [h("p", {}, `${plural(judged.fitting, "node")} of ${judged.nodes} would take it:`), scoreKey(), scoreRows(judged.offers)],
  ];
}

export const VERDICTS = { bound: "good", refused: "warn", "bind-failed": "bad" };
export const verdict = (word) => tag(word, VERDICTS[word]);
