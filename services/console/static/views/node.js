// One node: how its GPUs are linked, what each does, and who has what of it.

import { bar, cells, fill, gib, h, keyed, percent, podLink, refreshTimes, table, tag, time } from "../dom.js";
import { matrix, wiring } from "../wiring.js";
import { health, share } from "./cluster.js";

export const id = "node";
export const title = "Node";
export const name = (route) => route.parts[0] || "Node";

const COLUMNS = [["GPU", "num"], ["Model"], ["Health"], ["Utilisation"], ["Memory"], ["Power", "num"], ["Cut"], ["Held by"]];

export function mount(main, context) {
  return new NodeView(main, context);
}

class NodeView {
  constructor(main, context) {
    this.store = context.store;
    this.node = context.route.parts[0] || "";
    this.head = h("div");
    this.drawing = h("div");
    this.table = h("div");
    this.facts = h("div");
    this.list = table(`GPUs of ${this.node}`, COLUMNS);
    this.parts = h("div", { hidden: true },
      h("div", { class: "row" },
        h("section", { class: "panel" }, h("h2", {}, "Links"), this.drawing),
        h("div", {}, h("section", { class: "panel" }, h("h2", {}, "Facts"), this.facts),
          h("section", { class: "panel" }, h("h2", {}, "Links as a table"), this.table))),
      h("section", { class: "panel" }, h("h2", {}, "GPUs"), this.list.root));
    main.append(h("div", { class: "head" }, h("h1", {}, this.node), this.head), this.parts);
  }

  update(changed) {
    const [uid, node] = Object.entries(this.store.sections.nodes || {}).find(([, one]) => one.node === this.node) || [];
    if (!node) {
      this.shown = null;
      fill(this.head, h("p", { role: "status" }, this.store.sections.nodes ? "There is no such node now." : "It is not known yet which nodes there are."));
      return;
    }
    this.parts.hidden = false;
    const topology = this.store.sections.topologies?.[node.topology];
    const ledger = this.store.sections.ledger?.[this.node];
    if (this.shown !== node || changed.has("topologies") || this.ledger !== ledger) {
      this.shown = node;
      this.ledger = ledger;
      fill(this.head, standing(node));
      fill(this.facts, facts(node, ledger));
      fill(this.drawing, wiring(node, topology));
      fill(this.table, matrix(node, topology));
    }
    const usage = this.store.sections.usage?.[uid];
    keyed(this.list.body, node.gpus.map((gpu, index) => [node, gpu, usage?.[index]]), ([, gpu]) => gpu.uuid, gpuRow);
    refreshTimes(this.facts);
  }
}

function gpuRow([node, gpu, reading]) {
  const [use, memory, power, heat] = reading || [null, null, null, null];
  return cells(COLUMNS, [
    h("span", { title: gpu.uuid }, gpu.index), gpu.model, [health(node, gpu), gpu.closed && h("div", { class: "warn" }, gpu.closed)],
    [bar(use), " ", percent(use)],
    [bar(memory === null ? null : (memory / gpu.memory_mib) * 100, "var(--c2)"), ` ${gib(memory)} of ${gib(gpu.memory_mib)}`],
    power === null ? "–" : `${power} W${heat === null ? "" : `, ${heat} °C`}`,
    gpu.mig ? gpu.slices.map((one) => tag(one.profile, one.fault ? "bad" : one.changing ? "warn" : "")) : gpu.sharing === "none" ? "–" : gpu.sharing,
    gpu.pods.length ? gpu.pods.map((pod) => h("div", {}, podLink(pod), " ", h("span", { class: "dim" }, share(pod)))) : h("span", { class: "dim" }, "free"),
  ]);
}

function standing(node) {
  return [
    tag(node.mode), node.untrusted.length ? tag("not trusted", "warn") : tag("trusted", "good"),
    node.unschedulable && tag("cordoned", "warn"), node.spot && tag(`spot ${node.spot.kind}`, "bad"), node.capacity === "spot" && tag("spot"),
  ];
}

function facts(node, ledger) {
  const fact = (title, value) => (value && (!Array.isArray(value) || value.length) ? [h("dt", {}, title), h("dd", {}, value)] : null);
  const lines = (texts) => texts.map((text) => h("div", {}, text));
  return h("dl", { class: "facts" },
    fact("Not trusted", lines(node.untrusted)), fact("Who and what", lines(node.details)), fact("Driver", node.driver_problem),
    fact("Closed", ledger?.closed), fact("Instance", [node.instance, node.capacity].filter(Boolean).join(", ")),
    fact("Place", [node.region, node.zone, node.rack, node.nvlink_domain].filter(Boolean).join(", ")), fact("Pool", node.pool),
    fact("Devices by", node.delivery), fact("Taints", lines(node.taints)),
    fact("Spot", node.spot ? [`${node.spot.kind} by ${node.spot.cloud} `, node.spot.time ? time(node.spot.time) : ""] : null),
    fact("Holds", (ledger?.holds || []).map((hold) => h("div", {}, hold.owner.hidden ? "another namespace" : `${hold.owner.kind} ${[hold.owner.namespace, hold.owner.name].filter(Boolean).join("/")}`, hold.text ? `: ${hold.text}` : "", hold.expires ? [" until ", time(hold.expires)] : ""))),
    fact("On their way", (ledger?.claims || []).map((claim) => h("div", {}, podLink(claim), ` ${claim.state} ${claim.problem}`))));
}
