// Who pays what over time, and how budgets stand.

import { PALETTE, areaChart, legend } from "../charts.js";
import { cells, choice, fill, h, keyed, money, percent, setTile, table, tag, tile, time } from "../dom.js";

export const id = "cost";
export const title = "Cost";
export const key = "o";
export const needs = ["costs", "money"];
export const count = (store) => {
  const bill = store.sections.money?.summary;
  return bill ? { text: `${money(bill.per_hour)}/h` } : null;
};

const BY = [["namespace", "Namespace"], ["team", "Team"]];
const STEPS = [["hour", "24 hours"], ["day", "30 days"]];
const COLUMNS = [["Group"], ["Cost", "num"], ["Used", "num"], ["Idle", "num"], ["Share", "num"]];
const LINES = 7;
const SPANS = {
  hour: () => ({ from: Date.now() - 24 * 3600e3, step: 3600e3 }),
  day: () => ({ from: Date.now() - 30 * 86400e3, step: 86400e3 }),
};
const NAMES = new Map(Object.entries({ __idle__: "idle", __unallocated__: "nobody's", __host__: "host", __others__: "others" }));

export function mount(main, { store, route, setOption }) {
  let by = route.options.get("by") === "team" ? "team" : "namespace";
  let step = route.options.get("over") === "day" ? "day" : "hour";
  const tiles = ["Per hour", "Per month", "Today", "Idle today", "Saved in 30 days", "Nodes without a price"].map(tile);
  const chart = h("div");
  const list = table("Cost by group", COLUMNS);
  const budgets = h("div");
  const none = h("p", { class: "empty" }, "There are no CostBudgets.");
  const saved = h("div");

  function showChart() {
    const groups = store.items("costs").filter((one) => one.dimension === by && one.step === step)
      .map((one) => ({ group: one.group, points: one.points, cost: sum(one.points, 1), used: sum(one.points, 2), idle: sum(one.points, 3) }))
      .sort((a, b) => b.cost - a.cost || (a.group < b.group ? -1 : 1));
    const all = groups.reduce((total, one) => total + one.cost, 0);
    const drawn = groups.slice(0, LINES).map((one, index) => ({ name: named(one.group), colour: PALETTE[index], points: one.points.map(([at, cost]) => [Date.parse(at), cost]) }));
    if (groups.length > LINES) drawn.push({ name: "others", colour: PALETTE[LINES], points: merged(groups.slice(LINES)) });
    fill(chart, areaChart(`Cost by ${by} over ${step === "hour" ? "24 hours" : "30 days"}; the table has the sums`, drawn, SPANS[step]()), legend(drawn));
    keyed(list.body, groups, (one) => one.group, (one) => cells(COLUMNS, [named(one.group), money(one.cost), money(one.used), money(one.idle), percent(all ? (one.cost / all) * 100 : null)]));
  }

  function showTiles() {
    const bill = store.sections.money?.summary;
    const month = store.sections.savings?.month;
    const [hour, whole, today, idle, saving, unpriced] = tiles;
    if (bill) {
      setTile(hour, money(bill.per_hour), `${bill.priced_nodes} nodes`);
      setTile(whole, money(bill.per_month), "at this rate");
      setTile(today, money(bill.today.cost));
      setTile(idle, money(bill.today.idle + bill.today.unallocated), bill.today.cost ? percent(((bill.today.idle + bill.today.unallocated) / bill.today.cost) * 100) : "");
      setTile(unpriced, String(bill.unpriced_nodes));
    }
    if (month) {
      setTile(saving, money(month.baseline - month.actual), month.baseline ? percent((1 - month.actual / month.baseline) * 100) : "");
      fill(saved, month.mechanisms.map((one) => h("p", {}, one.mechanism, " ", h("strong", {}, money(one.saved)), one.estimated && h("span", { class: "dim" }, " estimated"))));
    }
  }

  main.append(h("div", { class: "head" }, h("h1", {}, "Cost")),
    h("dl", { class: "tiles" }, tiles.map((one) => one.root)),
    h("div", { class: "controls" },
      choice("By", BY, by, (value) => { by = value; setOption("by", value, "namespace"); showChart(); }),
      choice("Over", STEPS, step, (value) => { step = value; setOption("over", value, "hour"); showChart(); })),
    h("section", { class: "panel" }, h("h2", {}, "Over time"), chart),
    h("div", { class: "row" },
      h("section", { class: "panel" }, h("h2", {}, "Groups"), list.root),
      h("div", {}, h("section", { class: "panel" }, h("h2", {}, "Budgets and forecasts"), budgets, none),
        h("section", { class: "panel" }, h("h2", {}, "Saved against unshared GPUs on demand"), saved))));
  return {
    update(changed) {
      if (changed.has("costs")) showChart();
      if (changed.has("money") || changed.has("savings")) showTiles();
      if (changed.has("budgets")) {
        keyed(budgets, store.items("budgets"), (one) => one.budget, budget);
        none.hidden = store.has("budgets");
      }
    },
  };
}

function budget(one) {
  const most = Math.max(one.limit, one.spend, one.forecast_high) || 1;
  const part = (amount) => `${((amount / most) * 100).toFixed(2)}%`;
  const level = one.spend >= one.limit ? "bad" : one.crossed.length || one.forecast > one.limit ? "warn" : "good";
  const told = `${money(one.spend)} of ${money(one.limit)} spent, forecast ${money(one.forecast)} (${money(one.forecast_low)} to ${money(one.forecast_high)})`;
  return h("div", { class: "budget" },
    h("div", {}, h("strong", {}, one.budget), " ", tag(one.state, level), h("span", { class: "dim" }, ` ${one.period}, ends `, time(one.end), one.action && `, then ${one.action}`)),
    h("div", { class: "gauge", role: "img", "aria-label": told },
      h("i", { class: "spent", style: { width: part(one.spend) } }),
      h("i", { class: "band", style: { left: part(one.forecast_low), width: part(Math.max(0, one.forecast_high - one.forecast_low)) } }),
      h("i", { class: "limit", style: { left: part(one.limit) } })),
    h("div", { class: "dim" }, told));
}

const named = (group) => NAMES.get(group) || group || "–";
const sum = (points, place) => points.reduce((total, point) => total + point[place], 0);

function merged(groups) {
  const sums = new Map();
  for (const one of groups) for (const [at, cost] of one.points) sums.set(Date.parse(at), (sums.get(Date.parse(at)) || 0) + cost);
  return [...sums].sort((a, b) => a[0] - b[0]);
}
