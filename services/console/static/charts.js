// Lines, areas and bands over time as SVG.

import { h, money } from "./dom.js";

const HEIGHT = 190;
const [LEFT, RIGHT, TOP, BOTTOM] = [52, 8, 8, 22];
export const PALETTE = ["var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c6)", "var(--c7)", "var(--c8)"];

/* `series`: {name, colour, points: [[time in ms, value]], step?, dashed?}; `band`: {points: [[time, low, high]], colour}. */
export function lineChart(label, series, { unit = "", band, most, columns = 1 } = {}) {
  const times = [...series.flatMap((one) => one.points.map(([at]) => at)), ...(band?.points.map(([at]) => at) || [])];
  if (times.length < 2) return h("p", { class: "empty" }, "Not enough is known yet to draw a line.");
  const values = [...series.flatMap((one) => one.points.map(([, value]) => value)), ...(band?.points.map(([, , high]) => high) || [])];
  const frame = scales(columns, Math.min(...times), Math.max(...times), most ?? nice(Math.max(...values.filter((one) => one !== null), 0)));
  return h("svg:svg", { class: "chart", viewBox: `0 0 ${frame.width} ${HEIGHT}`, role: "img", "aria-label": label },
    axes(frame, (value) => `${shorter(value)}${unit}`),
    band && h("svg:path", { class: "band", fill: band.colour, d: bandPath(frame, band.points) }),
    series.map((one) => h("svg:path", { class: `line ${one.dashed ? "step" : ""}`, stroke: one.colour, d: linePath(frame, one.points, one.step) })));
}

/* Stacked: `series` as above, all with the same times, the first lowest. */
export function areaChart(label, series, { from, step }) {
  const times = [...new Set(series.flatMap((one) => one.points.map(([at]) => at)))].sort((a, b) => a - b);
  if (times.length < 1) return h("p", { class: "empty" }, "Nothing has cost anything yet.");
  const under = times.map(() => 0);
  const layers = series.map((one) => {
    const known = new Map(one.points);
    const points = times.map((at, index) => [at, under[index], (under[index] += known.get(at) || 0)]);
    return { ...one, points };
  });
  const frame = scales(1, Math.min(from, times[0]), times[times.length - 1] + step, nice(Math.max(...under)));
  return h("svg:svg", { class: "chart", viewBox: `0 0 ${frame.width} ${HEIGHT}`, role: "img", "aria-label": label },
    axes(frame, (value) => money(value)),
    layers.map((one) => one.points.map(([at, low, high]) => high > low && h("svg:rect", {
      x: frame.x(at) + 0.8, width: Math.max(1, frame.x(at + step) - frame.x(at) - 1.6),
      y: frame.y(high), height: Math.max(0.3, frame.y(low) - frame.y(high)), fill: one.colour,
    }))));
}

export function legend(series) {
  return h("div", { class: "legend-list" }, series.map((one) =>
    h("span", { class: "key" }, h("i", { style: { background: one.colour, opacity: one.faint ? ".35" : "1" } }), one.name)));
}

function scales(columns, from, to, most) {
  const width = Math.max(330, document.getElementById("main").clientWidth / columns - 64);
  const wide = Math.max(1, to - from);
  const top = most || 1;
  return {
    width, from, to, most: top,
    x: (at) => LEFT + ((at - from) / wide) * (width - LEFT - RIGHT),
    y: (value) => HEIGHT - BOTTOM - (Math.min(value, top) / top) * (HEIGHT - TOP - BOTTOM),
  };
}

function axes(frame, told) {
  const rows = [0, 0.25, 0.5, 0.75, 1].map((part) => part * frame.most);
  const length = frame.to - frame.from;
  const shape = length > 3 * 86400e3 ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit", second: length < 600e3 ? "2-digit" : undefined };
  const columns = [0, 1, 2, 3, 4].map((part) => frame.from + (part / 4) * (frame.to - frame.from));
  return [
    rows.map((value) => [
      h("svg:line", { class: value ? "grid" : "axis", x1: LEFT, x2: frame.width - RIGHT, y1: frame.y(value), y2: frame.y(value) }),
      h("svg:text", { x: LEFT - 6, y: frame.y(value) + 4, "text-anchor": "end" }, told(value)),
    ]),
    columns.map((at, index) => h("svg:text", { x: frame.x(at), y: HEIGHT - 5, "text-anchor": index === 0 ? "start" : index === 4 ? "end" : "middle" },
      new Date(at).toLocaleString("en-GB", shape))),
  ];
}

function linePath(frame, points, step) {
  let path = "";
  let open = false;
  let last = 0;
  for (const [at, value] of points) {
    if (value === null || value === undefined) {
      open = false;
      continue;
    }
    const [x, y] = [frame.x(at).toFixed(1), frame.y(value).toFixed(1)];
    path += !open ? `M${x} ${y}` : step ? `L${x} ${last}L${x} ${y}` : `L${x} ${y}`;
    open = true;
    last = y;
  }
  return path;
}

function bandPath(frame, points) {
  const known = points.filter(([, low, high]) => low !== null && high !== null);
  if (!known.length) return "";
  const up = known.map(([at, , high]) => `${frame.x(at).toFixed(1)} ${frame.y(high).toFixed(1)}`);
  const down = known.map(([at, low]) => `${frame.x(at).toFixed(1)} ${frame.y(low).toFixed(1)}`).reverse();
  return `M${up.join("L")}L${down.join("L")}Z`;
}

function nice(value) {
  if (value <= 0) return 1;
  const scale = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((one) => one * scale).find((one) => one >= value * 1.02) ?? value;
}

function shorter(value) {
  return value >= 1000 ? `${(value / 1000).toFixed(1)}k` : Number.isInteger(value) ? value : value.toFixed(value < 10 ? 1 : 0);
}
