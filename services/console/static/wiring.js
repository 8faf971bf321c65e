// How the GPUs of a node are linked: a drawing, and the same as a table.

import { h } from "./dom.js";

const SIZE = 420;
const MIDDLE = SIZE / 2;

export function wiring(node, topology) {
  const gpus = node.gpus;
  const places = gpus.map((_, index) => place(index, gpus.length));
  const name = `How the ${gpus.length} GPUs of ${node.node} are linked; the table below says the same`;
  const nvlinks = topology ? topology.pairs.filter(([a, b, links]) => links > 0 && a < gpus.length && b < gpus.length) : [];
  return h("svg:svg", { class: "wiring", viewBox: `0 0 ${SIZE} ${SIZE}`, role: "img", "aria-label": name },
    topology?.nvswitch ? throughSwitch(places, nvlinks) : between(places, nvlinks, topology, gpus.length),
    gpus.map((gpu, index) => drawGpu(gpu, places[index])));
}

function place(index, count) {
  if (count === 1) return [MIDDLE, MIDDLE];
  const turn = (index / count) * 2 * Math.PI - Math.PI / 2;
  const radius = count <= 2 ? 110 : 155;
  return [MIDDLE + radius * Math.cos(turn), MIDDLE + radius * Math.sin(turn)];
}

function throughSwitch(places, nvlinks) {
  const linked = new Map();
  for (const [a, b, links] of nvlinks) {
    linked.set(a, Math.max(linked.get(a) || 0, links));
    linked.set(b, Math.max(linked.get(b) || 0, links));
  }
  return [
    [...linked].map(([index, links]) => h("svg:line", { class: "link", x1: MIDDLE, y1: MIDDLE, x2: places[index][0], y2: places[index][1], "stroke-width": 1 + links / 6 })),
    h("svg:circle", { class: "switch", cx: MIDDLE, cy: MIDDLE, r: 34 }),
    h("svg:text", { x: MIDDLE, y: MIDDLE + 4 }, "NVSwitch"),
  ];
}

function between(places, nvlinks, topology, count) {
  const near = topology ? topology.pairs.filter(([a, b, links, level]) => !links && a < count && b < count && ["PIX", "PXB", "BOARD", "PHB"].includes(level)) : [];
  return [
    near.map(([a, b]) => h("svg:line", { class: "pcie", x1: places[a][0], y1: places[a][1], x2: places[b][0], y2: places[b][1] })),
    nvlinks.map(([a, b, links]) => h("svg:line", { class: "link", x1: places[a][0], y1: places[a][1], x2: places[b][0], y2: places[b][1], "stroke-width": Math.min(7, 0.8 + links / 2) },
      h("svg:title", {}, `GPU ${a} and GPU ${b}: ${links} NVLinks`))),
  ];
}

function drawGpu(gpu, [x, y]) {
  const failing = gpu.health === "unhealthy" || gpu.health === "lost";
  const high = (44 * gpu.allocated) / 1000;
  return h("svg:g", {},
    h("svg:title", {}, `GPU ${gpu.index}, ${gpu.model}: ${gpu.pods.length ? gpu.pods.map((pod) => (pod.hidden ? "another namespace" : `${pod.namespace}/${pod.pod}`)).join(", ") : "free"}`),
    h("svg:rect", { class: `gpu ${failing ? "bad" : gpu.closed ? "closed" : ""}`, x: x - 26, y: y - 24, width: 52, height: 48, rx: 7 }),
    gpu.allocated > 0 && h("svg:rect", { class: "fill", x: x - 24, y: y + 22 - high, width: 5, height: high, rx: 2 }),
    h("svg:text", { x: x + 2, y: y - 2 }, `GPU ${gpu.index}`),
    h("svg:text", { class: "small", x: x + 2, y: y + 12 }, failing ? gpu.health : gpu.numa === null ? "" : `NUMA ${gpu.numa}`));
}

export function matrix(node, topology) {
  if (!topology) return h("p", { class: "empty" }, "How these GPUs are linked is not known.");
  const told = new Map(topology.pairs.map(([a, b, links, level]) => [`${a} ${b}`, [links, level]]));
  const count = Math.min(topology.gpus, node.gpus.length);
  const numbers = Array.from({ length: count }, (_, index) => index);
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Links between GPUs" },
    h("table", { class: "matrix" },
      h("caption", { class: "hidden" }, "Links between GPUs: NV and the number of NVLinks, else the nearest common point on PCIe"),
      h("thead", {}, h("tr", {}, h("td", {}, ""), numbers.map((index) => h("th", { scope: "col" }, `GPU ${index}`)))),
      h("tbody", {}, numbers.map((row) => h("tr", {}, h("th", { scope: "row" }, `GPU ${row}`), numbers.map((column) => {
        if (row === column) return h("td", { class: "dim" }, "–");
        const [links, level] = told.get(`${Math.min(row, column)} ${Math.max(row, column)}`) || [0, ""];
        return h("td", { "data-nv": links ? true : null }, links ? `NV${links}` : level || "?");
      }))))));
}
