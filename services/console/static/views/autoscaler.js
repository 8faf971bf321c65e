// Nodes now and wanted, the forecast, claims, spot notices, and what was done.

import { legend, lineChart } from "../charts.js";
import { cells, h, keyed, money, nodeLink, percent, plural, podLink, table, tag, time } from "../dom.js";

export const id = "autoscaler";
export const title = "Autoscaler";
export const key = "a";
export const needs = ["policies", "claims", "actions"];
export const count = (store) => {
  const [ready, desired] = store.items("policies").reduce(([a, b], one) => [a + one.ready, b + one.desired], [0, 0]);
  return store.has("policies") ? { text: `${ready}/${desired}`, level: ready === desired ? "" : "warn" } : null;
};

const CLAIMS = [["Claim"], ["State"], ["Pool"], ["Instance"], ["Node"], ["GPUs", "num"], ["Per hour", "num"], ["Asked for"], ["Message"]];
const ACTIONS = [["When"], ["Action"], ["Pool"], ["Nodes", "num"], ["Per hour", "num"], ["Why"]];
const SPOT = [["Node"], ["Notice"], ["When"], ["Cloud"]];
const LEVELS = { GPUReady: "good", Draining: "warn", Gone: "" };

export function mount(main, { store }) {
  const policies = h("div");
  const none = h("p", { class: "empty" }, "There is no AutoscalingPolicy: nodes are neither bought nor drained.");
  const claims = table("Node claims", CLAIMS);
  const actions = table("What was done", ACTIONS);
  const spot = table("Spot notices", SPOT);
  const calm = h("p", { class: "empty" }, "No node has a notice.");

  function showPolicies() {
    const shown = store.items("policies").map((one) => [one, store.sections.scaling_history?.[one.policy], store.sections.plans?.[one.policy]]);
    keyed(policies, shown, ([one]) => one.policy, policy);
    none.hidden = shown.length > 0;
  }

  function showSpot() {
    const noticed = store.items("nodes").filter((node) => node.spot);
    keyed(spot.body, noticed, (node) => node.node, (node) => cells(SPOT, [nodeLink(node.node), tag(node.spot.kind, node.spot.kind === "interruption" ? "bad" : "warn"), node.spot.time ? time(node.spot.time) : "–", node.spot.cloud]));
    calm.hidden = noticed.length > 0;
    spot.root.hidden = noticed.length === 0;
  }

  main.append(h("div", { class: "head" }, h("h1", {}, "Autoscaler")), policies, none,
    h("section", { class: "panel" }, h("h2", {}, "Node claims"), claims.root),
    h("div", { class: "row" },
      h("section", { class: "panel" }, h("h2", {}, "Spot notices"), spot.root, calm),
      h("section", { class: "panel" }, h("h2", {}, "What was done"), actions.root)));
  return {
    update(changed) {
      if (["policies", "scaling_history", "plans"].some((one) => changed.has(one))) showPolicies();
      if (changed.has("claims")) keyed(claims.body, store.items("claims").sort((a, b) => ((b.requested || "") < (a.requested || "") ? -1 : 1)), (one) => one.claim, claim);
      if (changed.has("actions")) keyed(actions.body, store.items("actions").sort((a, b) => (b.time < a.time ? -1 : 1)).slice(0, 50), (one) => `${one.time} ${one.policy} ${one.type} ${one.pool}`, action);
      if (changed.has("nodes")) showSpot();
    },
  };
}

function policy([one, history = [], plan]) {
  const at = history.map(([time_]) => Date.parse(time_));
  const line = (place) => history.map((point, index) => [at[index], point[place]]);
  const nodes = [
    { name: "nodes with usable GPUs", colour: "var(--c1)", points: line(1), step: true },
    { name: "wanted", colour: "var(--c3)", points: line(2), step: true, dashed: true },
    { name: "pods waiting", colour: "var(--c6)", points: line(3), step: true },
  ];
  const forecast = history.map((point, index) => [at[index], point[5] === null ? null : Math.min(point[4] ?? 0, point[5]), point[5]]);
  const load = [{ name: "utilisation", colour: "var(--c1)", points: line(4) }, { name: "forecast, upper bound of 9 in 10", colour: "var(--c2)", points: line(5), dashed: true }];
  return h("section", { class: "panel" },
    h("h2", {}, one.policy, " ", tag(one.provider), !one.enabled && tag("off", "warn"), one.dry_run && tag("dry run", "warn")),
    h("p", {}, h("strong", {}, `${one.ready} of ${one.desired}`), ` nodes ready, at most ${one.most}; ${plural(one.pending, "pod")} waiting; utilisation ${percent(one.utilization)}`,
      one.predicted !== null && `; forecast up to ${percent(one.predicted)}, right ${percent(one.confidence)} of the time`),
    one.message && h("p", { class: "dim" }, one.message),
    h("div", { class: "row" },
      h("div", {}, lineChart(`Nodes and waiting pods of ${one.policy} over time`, nodes, { columns: 2 }), legend(nodes)),
      h("div", {}, lineChart(`Utilisation of ${one.policy} and its forecast`, load, { unit: " %", most: 100, columns: 2, band: { points: forecast, colour: "var(--c2)" } }), legend(load))),
    h("p", {}, one.pools.map((pool) => tag(`${pool.pool}: ${pool.nodes} nodes${pool.max === null ? "" : ` of ${pool.max}`}${pool.problem ? `, ${pool.problem}` : ""}`, pool.problem ? "warn" : ""))),
    plan && planned(plan));
}

function planned(plan) {
  const texts = [plan.up, plan.held, plan.down].filter(Boolean);
  return [
    texts.map((text) => h("p", { class: "dim" }, text)),
    plan.machines.map((one) => h("p", {}, "Would buy ", h("strong", {}, one.instance), ` ${one.capacity} in ${one.pool} for ${money(one.per_hour)} an hour, for ${plural(one.pods.length, "pod")}`)),
    plan.unplaced.map((one) => h("p", { class: "warn" }, podLink(one), `: ${one.reason}`)),
    plan.rejected.length > 0 && h("details", {}, h("summary", {}, `${plural(plan.rejected.length, "offering")} not considered`), plan.rejected.map((one) => h("p", { class: "dim" }, `${one.offering}: ${one.reason}`))),
  ];
}

const claim = (one) => cells(CLAIMS, [one.claim, tag(one.state, LEVELS[one.state]), one.pool, `${one.instance} ${one.capacity}`, nodeLink(one.node), one.gpus, money(one.per_hour), one.requested ? time(one.requested) : "–", one.message]);

const action = (one) => cells(ACTIONS, [time(one.time), one.type, one.pool, one.count, money(one.per_hour), one.reason]);
