// Every GPU of the cluster at once.

import { colours, kindColour, rampColour } from "../colours.js";
import { bar, cells, choice, fill, gib, h, keyed, money, nodeLink, percent, plural, podLink, setTile, table, tag, tile } from "../dom.js";
import { HeatMap } from "../heatmap.js";

export const id = "cluster";
export const title = "Cluster";
export const key = "c";
export const count = (store) => (store.sections.nodes ? { text: plural(store.items("nodes").length, "node") } : null);

const COLOUR = [["utilization", "Utilisation"], ["memory", "Memory"], ["allocated", "Allocated"], ["health", "Health"], ["slices", "Slices"], ["holder", "Holder"]];
const GROUP = [["rack", "Rack"], ["model", "Model"], ["pool", "Pool"], ["namespace", "Namespace"], ["none", "None"]];
const COLUMNS = [["Node"], ["GPU", "num"], ["Model"], ["Health"], ["Utilisation", "num"], ["Memory", "num"], ["Allocated", "num"], ["Held by"]];
const SUMS = [["Name"], ["GPUs", "num"], ["Allocated", "num"], ["Utilisation"], ["Pods", "num"]];
const SUMS_MS = 2000;
const MOST_ROWS = 400;

export function mount(main, context) {
  return new ClusterView(main, context);
}

class ClusterView {
  constructor(main, context) {
    this.context = context;
    this.store = context.store;
    const options = context.route.options;
    this.by = pick(COLOUR, options.get("colour"));
    this.group = GROUP.some(([one]) => one === options.get("by")) ? options.get("by") : "";
    this.find = (options.get("find") || "").toLowerCase();
    this.asTable = options.get("as") === "table";
    this.tiles = ["GPUs", "Allocated", "Utilisation", "Memory", "Nodes trusted", "Pods waiting", "Cost"].map(tile);
    this.canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": "Heat map of all GPUs. Arrow keys move between GPUs, Enter opens the node. The table has the same.", "aria-describedby": "detail" });
    this.map = new HeatMap(this.canvas, (found) => this.showDetail(found));
    this.map.open = (uid) => context.go(`#/node/${encodeURIComponent(this.store.sections.nodes[uid].node)}`);
    this.legend = h("div", { class: "heat-legend" });
    this.detail = h("aside", { class: "panel detail", id: "detail", "aria-label": "GPU in focus", "aria-live": "polite" });
    this.list = table("All GPUs", COLUMNS);
    this.note = h("p", { class: "dim" });
    this.heat = h("div", { class: "heat" }, this.canvas, this.legend);
    this.rows = h("div", {}, this.list.root, this.note);
    this.groupChoice = h("span");
    this.models = table("GPUs by model", SUMS);
    this.spaces = table("GPUs by namespace", SUMS);
    this.frame(main);
    this.observer = new ResizeObserver(() => this.layOut());
    this.observer.observe(this.heat);
    this.showDetail(null);
  }

  frame(main) {
    const filter = h("input", { type: "search", id: "filter", value: this.find, placeholder: "node, pod, namespace, model", class: "filter", oninput: (event) => {
      this.find = event.target.value.toLowerCase();
      this.context.setOption("find", event.target.value, "");
      this.redraw();
    } });
    main.append(
      h("div", { class: "head" }, h("h1", {}, "Cluster")),
      h("dl", { class: "tiles" }, this.tiles.map((one) => one.root)),
      h("div", { class: "controls" },
        choice("Colour", COLOUR, this.by, (value) => this.set("by", "colour", value, COLOUR[0][0])),
        this.groupChoice,
        choice("As", [["map", "Map"], ["table", "Table"]], this.asTable ? "table" : "map", (value) => {
          this.asTable = value === "table";
          this.context.setOption("as", value, "map");
          this.layOut();
        }),
        h("span", {}, h("label", { for: "filter" }, "Highlight "), filter)),
      h("div", { class: "with-detail" }, h("div", { class: "panel" }, this.heat, this.rows), this.detail),
      h("div", { class: "row" },
        h("section", { class: "panel" }, h("h2", {}, "By model"), this.models.root),
        h("section", { class: "panel" }, h("h2", {}, "By namespace"), this.spaces.root)));
  }

  /* By rack where racks are known, else by model, unless somebody chose. */
  chooseGroup() {
    if (this.grouped || !this.store.has("nodes")) return;
    this.grouped = true;
    const usual = this.store.items("nodes").some((node) => node.rack) ? "rack" : "model";
    this.group = this.group || usual;
    fill(this.groupChoice, choice("Group", GROUP, this.group, (value) => this.set("group", "by", value, usual)));
  }

  set(field, option, value, usual) {
    this[field] = value;
    this.context.setOption(option, value, usual);
    if (field === "group") this.layOut();
    else this.redraw();
  }

  update(changed, items, themed) {
    this.chooseGroup();
    if (changed.has("nodes")) {
      const layout = this.signature();
      if (layout !== this.laid || themed) this.layOut();
      else this.paintChanged({ ...items?.nodes, ...items?.usage }, items);
    } else if (changed.has("usage")) this.paintChanged(items?.usage, items);
    this.showTiles();
    this.showSums();
    if (this.found) this.showDetail(this.found);
    if (this.asTable) this.showRows();
  }

  paintChanged(items, delta) {
    if (this.asTable) return;
    this.map.change(delta ? Object.keys(items || {}) : this.map.byNode.keys(), this.scene());
  }

  /* What decides where cells are. */
  signature() {
    const nodes = this.store.sections.nodes || {};
    return `${this.group} ${Object.keys(nodes).map((uid) => `${uid} ${nodes[uid].gpus.length} ${this.group === "namespace" ? this.groupOf(nodes[uid]) : ""}`).join()}`;
  }

  scene() {
    return {
      by: this.by,
      nodes: this.store.sections.nodes || {},
      usage: this.store.sections.usage || {},
      colours: (this.set_ ??= colours()),
      dims: this.find ? (node, gpu) => !matches(node, gpu, this.find) : () => false,
    };
  }

  layOut() {
    this.heat.hidden = this.asTable;
    this.rows.hidden = !this.asTable;
    if (this.asTable) return this.showRows();
    const width = this.heat.clientWidth;
    if (!width) return undefined;
    this.laid = this.signature();
    this.map.lay(this.groups(), width);
    this.redraw();
    return undefined;
  }

  redraw() {
    this.set_ = colours();
    this.map.drawAll(this.scene());
    this.showLegend();
    if (this.asTable) this.showRows();
  }

  groups() {
    const groups = new Map();
    for (const entry of Object.entries(this.store.sections.nodes || {})) {
      const name = this.groupOf(entry[1]);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(entry);
    }
    const order = new Intl.Collator("en", { numeric: true }).compare;
    for (const nodes of groups.values()) nodes.sort((a, b) => order(a[1].node, b[1].node));
    return [...groups].sort((a, b) => order(a[0], b[0]));
  }

  groupOf(node) {
    if (this.group === "none") return "All GPUs";
    if (this.group === "model") return [...new Set(node.gpus.map((gpu) => gpu.model))].sort().join(", ") || "no GPU";
    if (this.group === "namespace") return mostHeld(node) || "free";
    return node[this.group] || `no ${this.group}`;
  }

  showTiles() {
    const [gpus, allocated, use, memory, trusted, waiting, cost] = this.tiles;
    if (this.store.sections.pending) setTile(waiting, String(this.store.items("pending").length));
    const bill = this.store.sections.money?.summary;
    if (bill) setTile(cost, money(bill.per_hour), "/ hour");
    // What was not heard is not zero.
    if (!this.store.sections.nodes) return;
    const sum = totals(this.store);
    setTile(gpus, sum.gpus.toLocaleString("en-US"), sum.failing ? `${sum.failing} failing` : "all healthy");
    setTile(allocated, percent(sum.gpus ? (sum.allocated / sum.gpus) * 100 : null), `${sum.allocated.toFixed(1)} GPUs`);
    setTile(use, percent(sum.measured ? sum.use / sum.measured : null), sum.measured < sum.gpus ? `of ${sum.measured}` : "");
    setTile(memory, gib(sum.used), `of ${gib(sum.memory)}`);
    setTile(trusted, `${sum.trusted}/${sum.nodes}`);
  }

  showSums() {
    const now = performance.now();
    if (now - (this.summedAt ?? -Infinity) < SUMS_MS) return;
    this.summedAt = now;
    const [models, spaces] = sums(this.store);
    const show = (list, groups) => keyed(list.body, groups.map((one) => JSON.stringify(one)), (text) => JSON.parse(text)[0], (text) => {
      const [name, gpus, held, use, pods] = JSON.parse(text);
      return cells(SUMS, [name, gpus, held, [bar(use), " ", percent(use)], pods]);
    });
    show(this.models, models);
    show(this.spaces, spaces.slice(0, 12));
  }

  showLegend() {
    const set = this.set_;
    const swatch = (colour, name) => h("span", { class: "swatch" }, h("i", { style: { background: colour } }), name);
    const ramp = (name) => h("span", { class: "ramp" }, "0", h("b", {}, Array.from({ length: 9 }, (_, step) => h("i", { style: { background: rampColour(set.ramp, step / 8) } }))), `100 % ${name}`);
    const told = {
      utilization: () => ramp("busy"),
      memory: () => ramp("of its memory in use"),
      allocated: () => ramp("given to pods"),
      health: () => [swatch(set.good, "healthy"), swatch(set.bad, "unhealthy or lost"), swatch(set.dim, "not known")],
      slices: () => [swatch(set.taken, "slice in use"), swatch(set.free, "slice free"), ramp("given, where not cut")],
      holder: () => [...heldBy(this.store)].slice(0, 12).map((name) => swatch(kindColour(set.kinds, name), name || "other namespaces")),
    };
    fill(this.legend, told[this.by](), h("span", {}, "□ not told"), h("span", {}, "◥ closed or not trusted"), h("span", {}, "✕ failing"));
  }

  showDetail(found) {
    this.found = found;
    const node = found && this.store.sections.nodes?.[found.uid];
    const gpu = node?.gpus[found.index];
    if (!gpu) {
      if (this.detailOf !== null) fill(this.detail, h("h2", {}, "GPU"), h("p", { class: "dim" }, "Point at a cell, or focus the map and use the arrow keys."));
      this.detailOf = null;
      return;
    }
    const reading = this.store.sections.usage?.[found.uid]?.[found.index];
    if (this.detailOf && this.detailOf[0] === node && this.detailOf[1] === reading && this.detailOf[2] === gpu) return;
    this.detailOf = [node, reading, gpu];
    fill(this.detail, detail(node, gpu, reading));
  }

  showRows() {
    const rows = [];
    for (const [, nodes] of this.groups()) {
      for (const [uid, node] of nodes) {
        node.gpus.forEach((gpu, index) => {
          if (!this.find || matches(node, gpu, this.find)) rows.push([node, gpu, this.store.sections.usage?.[uid]?.[index]]);
        });
      }
    }
    keyed(this.list.body, rows.slice(0, MOST_ROWS), ([, gpu]) => gpu.uuid, gpuRow);
    this.note.textContent = rows.length > MOST_ROWS ? `${MOST_ROWS} of ${rows.length.toLocaleString("en-US")}: highlight something to see others.` : "";
  }

  end() {
    this.observer.disconnect();
  }
}

function gpuRow([node, gpu, reading]) {
  return cells(COLUMNS, [nodeLink(node.node), gpu.index, gpu.model, health(node, gpu),
    [bar(reading?.[0]), " ", percent(reading?.[0])], gib(reading?.[1]), percent(gpu.allocated / 10),
    gpu.pods.length ? gpu.pods.map((pod) => h("div", {}, podLink(pod))) : h("span", { class: "dim" }, "free")]);
}

function detail(node, gpu, reading) {
  const fact = (name, value) => (value ? [h("dt", {}, name), h("dd", {}, value)] : null);
  return [
    h("h2", {}, nodeLink(node.node), ` · GPU ${gpu.index}`),
    h("dl", {},
      fact("Model", gpu.model), fact("Health", health(node, gpu)),
      fact("Use", `${percent(reading?.[0])}, ${gib(reading?.[1])} of ${gib(gpu.memory_mib)}`),
      fact("Power", reading?.[2] ? `${reading[2]} W${reading[3] === null ? "" : `, ${reading[3]} °C`}` : ""),
      fact("Given", percent(gpu.allocated / 10)),
      fact("Slices", gpu.mig ? gpu.slices.map((one) => one.profile).join(", ") || "cut, none made" : ""),
      fact("Sharing", gpu.sharing === "none" ? "" : gpu.sharing), fact("Changing", gpu.changing),
      fact("Closed", gpu.closed), fact("Node", node.untrusted.join("; ")),
      fact("Rack", node.rack), fact("Pool", node.pool), fact("Instance", [node.instance, node.capacity].filter(Boolean).join(", ")),
      fact("UUID", h("span", { class: "mono" }, gpu.uuid))),
    h("ul", {}, gpu.pods.map((pod) => h("li", {}, podLink(pod), " ", h("span", { class: "dim" }, share(pod))))),
  ];
}

export function share(pod) {
  const part = pod.slice ? `${pod.slice.profile} at ${pod.slice.start}` : pod.milli >= 1000 ? "whole" : `${pod.milli / 10} %`;
  return [part, gib(pod.memory_mib), pod.how].filter((one) => one && one !== "–").join(", ");
}

export function health(node, gpu) {
  if (gpu.health === "healthy") return gpu.closed || node.untrusted.length ? tag("closed", "warn") : tag("healthy", "good");
  return [tag(gpu.health, gpu.health === "unknown" ? "warn" : "bad"), gpu.health_reason ? ` ${gpu.health_reason}` : ""];
}

function totals(store) {
  const sum = { nodes: 0, trusted: 0, gpus: 0, failing: 0, allocated: 0, use: 0, measured: 0, used: 0, memory: 0 };
  for (const [uid, node] of Object.entries(store.sections.nodes || {})) {
    sum.nodes += 1;
    sum.trusted += node.untrusted.length === 0;
    const usage = store.sections.usage?.[uid];
    node.gpus.forEach((gpu, index) => {
      sum.gpus += 1;
      sum.failing += gpu.health !== "healthy";
      sum.allocated += gpu.allocated / 1000;
      sum.memory += gpu.memory_mib;
      const [use, used] = usage?.[index] || [null, null];
      if (use !== null) {
        sum.use += use;
        sum.measured += 1;
      }
      sum.used += used || 0;
    });
  }
  return sum;
}

/* [name, GPUs, allocated, utilisation, pods] by model and by namespace; of a namespace GPUs are those it has a part of. */
function sums(store) {
  const models = new Map();
  const spaces = new Map();
  const at = (map, name) => map.get(name) || map.set(name, { gpus: 0, held: 0, use: 0, told: 0, pods: new Set() }).get(name);
  for (const [uid, node] of Object.entries(store.sections.nodes || {})) {
    node.gpus.forEach((gpu, index) => {
      const use = store.sections.usage?.[uid]?.[index]?.[0] ?? null;
      const parts = new Map();
      for (const pod of gpu.pods) parts.set(pod.hidden ? "other namespaces" : pod.namespace || "no pod", (parts.get(pod.hidden ? "other namespaces" : pod.namespace || "no pod") || 0) + pod.milli);
      const of = [[at(models, gpu.model), gpu.allocated], ...[...parts].map(([name, milli]) => [at(spaces, name), Math.min(1000, milli)])];
      for (const [sum, milli] of of) {
        sum.gpus += 1;
        sum.held += milli / 1000;
        if (use !== null) [sum.use, sum.told] = [sum.use + use, sum.told + 1];
      }
      for (const pod of gpu.pods) {
        at(models, gpu.model).pods.add(pod.uid);
        at(spaces, pod.hidden ? "other namespaces" : pod.namespace || "no pod").pods.add(pod.uid);
      }
    });
  }
  return [models, spaces].map((map) => [...map].map(([name, one]) => [name, one.gpus, one.held.toFixed(1), one.told ? Math.round(one.use / one.told) : null, one.pods.size])
    .sort((a, b) => b[2] - a[2] || (a[0] < b[0] ? -1 : 1)));
}

function matches(node, gpu, words) {
  return [node.node, node.rack, node.pool, gpu.model, gpu.uuid, ...gpu.pods.map((pod) => `${pod.namespace}/${pod.pod}`)].some((text) => text?.toLowerCase().includes(words));
}

function mostHeld(node) {
  const held = new Map();
  for (const gpu of node.gpus) for (const pod of gpu.pods) if (pod.namespace) held.set(pod.namespace, (held.get(pod.namespace) || 0) + pod.milli);
  return [...held].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))[0]?.[0];
}

function heldBy(store) {
  const names = new Set();
  for (const node of store.items("nodes")) for (const gpu of node.gpus) if (gpu.pods[0]) names.add(gpu.pods[0].hidden ? "" : gpu.pods[0].namespace || "no pod");
  return [...names].sort();
}

function pick(options, value) {
  return options.some(([one]) => one === value) ? value : options[0][0];
}
