// What somebody should look at now, as far as the sections say.

import { h, keyed, plural } from "./dom.js";

const MOST = 24;

export function showIncidents(strip, store) {
  const found = incidents(store);
  const shown = found.slice(0, MOST);
  if (found.length > MOST) shown.push({ level: "warn", text: `and ${found.length - MOST} more`, place: "#/cluster?colour=health" });
  keyed(strip, shown.map((one) => JSON.stringify(one)), (one) => one, (text) => {
    const one = JSON.parse(text);
    return h("a", { class: "incident", "data-level": one.level, href: one.place, title: one.text }, h("span", {}, one.text));
  });
  strip.hidden = found.length === 0;
}

export function incidents(store) {
  const found = [];
  const add = (level, text, place) => found.push({ level, text, place });
  for (const [name, source] of Object.entries(store.sections.sources || {})) {
    if (!source.ok && source.reason !== "not asked yet") add("bad", `${name} is away: ${source.reason}`, "#/cluster");
  }
  for (const alert of store.items("alerts")) {
    add(alert.severity === "critical" ? "bad" : "warn", `${alert.alert} ${Object.values(alert.labels).join(" ")}`, "#/cluster");
  }
  for (const node of store.items("nodes")) fromNode(node, add);
  for (const budget of store.items("budgets")) {
    if (budget.crossed.length) add(budget.state === "Exceeded" ? "bad" : "warn", `budget ${budget.budget}: ${budget.state}, crossed ${budget.crossed.join(", ")}`, "#/cost");
  }
  return found.sort((a, b) => (a.level === b.level ? 0 : a.level === "bad" ? -1 : 1));
}

function fromNode(node, add) {
  const place = `#/node/${encodeURIComponent(node.node)}`;
  if (node.untrusted.length) add("warn", `${node.node} is not trusted: ${node.untrusted.join("; ")}`, place);
  if (node.driver_problem) add("bad", `${node.node}: ${node.driver_problem}`, place);
  if (node.spot) add(node.spot.kind === "interruption" ? "bad" : "warn", `${node.node}: spot ${node.spot.kind} by ${node.spot.cloud}`, place);
  const failing = node.gpus.filter((gpu) => gpu.health === "unhealthy" || gpu.health === "lost");
  if (failing.length) {
    const reasons = [...new Set(failing.map((gpu) => gpu.health_reason || gpu.health))].join("; ");
    add("bad", `${node.node}: ${plural(failing.length, "GPU")} ${reasons}`, place);
  }
  const closed = node.gpus.filter((gpu) => gpu.closed);
  if (closed.length) add("warn", `${node.node}: ${plural(closed.length, "GPU")} closed: ${closed[0].closed}`, place);
}
