// Every GPU as a cell of a canvas. Cells keep their place while the set of nodes and the grouping stay; a change
// repaints only the cells whose colour is another one.

import { cellColour, isTroubled } from "./colours.js";

const LARGEST = 30;
const LABELLED = 16;
const LABEL = 15;
const SMALLEST = 7;
const GAP = 1;
const NODE_GAP = 5;
const TITLE = 20;
const MOST_HEIGHT = 560;
// Drawn in one frame, so that a change of a thousand nodes leaves room for others.
const NODES_A_FRAME = 250;

export class HeatMap {
  constructor(canvas, pick) {
    this.canvas = canvas;
    this.paint = canvas.getContext("2d");
    this.pick = pick;
    this.cells = [];
    this.byNode = new Map();
    this.groups = [];
    this.labels = [];
    this.at = -1;
    this.waiting = new Set();
    this.ticket = 0;
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => this.focusCell(this.kept ?? -1));
    canvas.addEventListener("click", (event) => this.click(event));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => {
      if (this.at < 0 && this.cells.length) this.focusCell(0);
    });
  }

  /* `groups`: [title, [[uid, node], …]] in order. */
  lay(groups, width) {
    const size = this.fitting(groups, width);
    this.size = size;
    this.cells = [];
    this.byNode = new Map();
    this.groups = [];
    this.labels = [];
    let top = 0;
    for (const [title, nodes] of groups) {
      this.groups.push({ title, top, count: nodes.reduce((sum, [, node]) => sum + node.gpus.length, 0) });
      top = this.layNodes(nodes, width, top + TITLE) + 8;
    }
    this.resize(width, Math.max(top, 40));
  }

  layNodes(nodes, width, top) {
    const step = this.size + GAP;
    const label = this.size >= LABELLED ? LABEL : 0;
    let x = 0;
    let y = top + label;
    for (const [uid, node] of nodes) {
      const wide = this.wideness(node, this.size);
      if (x > 0 && x + wide > width) {
        x = 0;
        y += step + NODE_GAP - GAP + label;
      }
      if (label) this.labels.push({ text: node.node, x, y: y - label + 2, wide });
      const first = this.cells.length;
      node.gpus.forEach((gpu, index) => this.cells.push({ uid, index, x: x + index * step, y }));
      this.byNode.set(uid, [first, node.gpus.length]);
      x += wide + NODE_GAP + 1;
    }
    return y + step;
  }

  /* The largest cells with which everything is seen at once, else the smallest. */
  fitting(groups, width) {
    for (let size = LARGEST; size > SMALLEST; size -= 1) {
      const step = size + GAP;
      let height = 0;
      for (const [, nodes] of groups) {
        let x = 0;
        let rows = 1;
        for (const [, node] of nodes) {
          const wide = this.wideness(node, size);
          if (x > 0 && x + wide > width) {
            x = 0;
            rows += 1;
          }
          x += wide + NODE_GAP + 1;
        }
        height += TITLE + rows * (step + NODE_GAP + (size >= LABELLED ? LABEL : 0)) + 8;
      }
      if (height <= MOST_HEIGHT) return size;
    }
    return SMALLEST;
  }

  wideness(node, size) {
    const cells = Math.max(1, node.gpus.length) * (size + GAP) - GAP;
    return size >= LABELLED ? Math.max(cells, Math.min(node.node.length, 22) * 6.2) : cells;
  }

  resize(width, height) {
    const ratio = window.devicePixelRatio || 1;
    this.width = width;
    this.height = height;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = `${height}px`;
    this.paint.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  drawAll(scene) {
    this.scene = scene;
    this.waiting.clear();
    this.paint.clearRect(0, 0, this.width, this.height);
    this.paint.font = "12px system-ui, sans-serif";
    this.paint.textBaseline = "top";
    for (const group of this.groups) {
      this.paint.fillStyle = scene.colours.dim;
      this.paint.fillText(`${group.title}   ${group.count.toLocaleString("en-US")}`, 0, group.top + 2);
    }
    this.paint.font = "11px system-ui, sans-serif";
    for (const label of this.labels) this.paint.fillText(clipped(label.text), label.x, label.y, label.wide);
    for (const cell of this.cells) cell.colour = undefined;
    this.drawNodes(this.byNode.keys(), scene);
    this.outline();
    performance.mark("heat-map-drawn");
  }

  /* Soon: a part with each frame. */
  change(uids, scene) {
    this.scene = scene;
    for (const uid of uids) this.waiting.add(uid);
    if (this.waiting.size && !this.ticket) this.ticket = requestAnimationFrame(() => this.drawSome());
  }

  drawSome() {
    const some = [...this.waiting].slice(0, NODES_A_FRAME);
    for (const uid of some) this.waiting.delete(uid);
    this.drawNodes(some, this.scene);
    this.ticket = this.waiting.size ? requestAnimationFrame(() => this.drawSome()) : 0;
  }

  drawNodes(uids, scene) {
    this.scene = scene;
    for (const uid of uids) {
      const place = this.byNode.get(uid);
      const node = scene.nodes[uid];
      if (!place || !node) continue;
      for (let number = place[0]; number < place[0] + place[1]; number += 1) this.drawCell(this.cells[number], node);
    }
  }

  drawCell(cell, node) {
    const gpu = node.gpus[cell.index];
    if (!gpu) return;
    const dimmed = this.scene.dims(node, gpu);
    const colour = cellColour(this.scene, node, gpu, this.scene.usage[cell.uid]?.[cell.index]);
    const marked = isTroubled(node, gpu);
    const told = `${colour} ${marked} ${dimmed} ${this.scene.by === "slices" ? sliceKey(gpu) : ""}`;
    if (cell.colour === told) return;
    cell.colour = told;
    const { paint, size } = this;
    paint.clearRect(cell.x, cell.y, size, size);
    paint.globalAlpha = dimmed ? 0.18 : 1;
    if (colour) {
      paint.fillStyle = colour;
      paint.fillRect(cell.x, cell.y, size, size);
    } else {
      paint.strokeStyle = this.scene.colours.line;
      paint.lineWidth = 1;
      paint.strokeRect(cell.x + 0.5, cell.y + 0.5, size - 1, size - 1);
    }
    if (this.scene.by === "slices" && gpu.mig) this.drawSlices(cell, gpu);
    if (marked) this.drawMark(cell, marked);
    paint.globalAlpha = 1;
    if (this.cells[this.at] === cell) this.outline();
  }

  /* A cut GPU is a column of its slices from below, taken ones full. */
  drawSlices(cell, gpu) {
    const all = Math.max(8, ...gpu.slices.map((one) => one.start + one.slices));
    for (const one of gpu.slices) {
      const taken = gpu.pods.some((pod) => pod.slice?.start === one.start && pod.slice?.profile === one.profile);
      this.paint.fillStyle = taken ? this.scene.colours.taken : this.scene.colours.free;
      const high = (this.size * one.slices) / all;
      this.paint.fillRect(cell.x + 1, cell.y + this.size - (this.size * one.start) / all - high, this.size - 2, Math.max(1, high - 0.7));
    }
  }

  /* A corner for what is closed, a cross for what fails: not by colour alone. */
  drawMark(cell, kind) {
    const { paint, size } = this;
    const wide = Math.max(1.2, size / 10);
    // With a rim of the ground, so that it is seen on a cell of about its own colour, too.
    paint.strokeStyle = this.scene.colours.ground;
    paint.fillStyle = this.scene.colours.warn;
    paint.lineWidth = kind === "bad" ? wide * 2.2 : 1;
    paint.beginPath();
    if (kind === "bad") {
      const [low, high] = [wide, size - wide];
      paint.moveTo(cell.x + low, cell.y + low);
      paint.lineTo(cell.x + high, cell.y + high);
      paint.moveTo(cell.x + high, cell.y + low);
      paint.lineTo(cell.x + low, cell.y + high);
      paint.stroke();
      paint.strokeStyle = this.scene.colours.bad;
      paint.lineWidth = wide;
      paint.stroke();
    } else {
      paint.moveTo(cell.x + size, cell.y);
      paint.lineTo(cell.x + size, cell.y + size * 0.5);
      paint.lineTo(cell.x + size * 0.5, cell.y);
      paint.fill();
      paint.beginPath();
      paint.moveTo(cell.x + size - 0.5, cell.y + size * 0.5 - 0.5);
      paint.lineTo(cell.x + size * 0.5 + 0.5, cell.y + 0.5);
      paint.stroke();
    }
  }

  outline() {
    const cell = this.cells[this.at];
    if (!cell || !this.scene) return;
    this.paint.strokeStyle = this.scene.colours.text;
    this.paint.lineWidth = 2;
    this.paint.strokeRect(cell.x + 1, cell.y + 1, this.size - 2, this.size - 2);
  }

  focusCell(number) {
    if (number === this.at) return;
    const before = this.cells[this.at];
    this.at = number;
    if (before && this.scene) {
      before.colour = undefined;
      const node = this.scene.nodes[before.uid];
      if (node) this.drawCell(before, node);
    }
    this.outline();
    const cell = this.cells[number];
    this.pick(cell ? { uid: cell.uid, index: cell.index } : null);
  }

  hover(event) {
    const found = this.find(event);
    if (found >= 0) this.focusCell(found);
  }

  click(event) {
    const found = this.find(event);
    if (found < 0) return;
    this.kept = found;
    this.focusCell(found);
    this.open?.(this.cells[found].uid);
  }

  find(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    // Cells are in the order of rows.
    let low = 0;
    let high = this.cells.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      const cell = this.cells[middle];
      if (cell.y + this.size < y || (cell.y <= y && cell.x + this.size < x)) low = middle + 1;
      else high = middle;
    }
    const cell = this.cells[low];
    return cell && x >= cell.x && x <= cell.x + this.size && y >= cell.y && y <= cell.y + this.size ? low : -1;
  }

  key(event) {
    const next = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Enter" && this.cells[this.at]) this.open?.(this.cells[this.at].uid);
    else if (next) this.focusCell(Math.min(this.cells.length - 1, Math.max(0, this.at + next)));
    else if (event.key === "ArrowUp" || event.key === "ArrowDown") this.vertical(event.key === "ArrowDown" ? 1 : -1);
    else if (event.key === "Home") this.focusCell(0);
    else if (event.key === "End") this.focusCell(this.cells.length - 1);
    else return;
    event.preventDefault();
  }

  vertical(direction) {
    const from = this.cells[this.at];
    if (!from) return;
    let best = -1;
    let distance = Infinity;
    this.cells.forEach((cell, number) => {
      const rows = (cell.y - from.y) * direction;
      if (rows <= 0) return;
      const far = rows * 1000 + Math.abs(cell.x - from.x);
      if (far < distance) [best, distance] = [number, far];
    });
    if (best >= 0) this.focusCell(best);
  }
}

const clipped = (text) => (text.length > 22 ? `${text.slice(0, 21)}…` : text);

function sliceKey(gpu) {
  return gpu.slices.map((one) => `${one.start}:${one.profile}`).join() + gpu.pods.map((pod) => pod.slice?.start ?? "").join();
}
