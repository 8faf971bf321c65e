// GPUWorkloads and how they stand.

import { cells, h, keyed, nodeLink, plural, table, tag, time } from "../dom.js";

export const id = "workloads";
export const title = "Workloads";
export const key = "w";
export const needs = ["workloads"];
export const count = (store) => ({ text: store.items("workloads").length });

const COLUMNS = [["Workload"], ["Phase"], ["GPUs", "num"], ["Priority"], ["Strategy"], ["Node"], ["Retries", "num"], ["Created"], ["Message"]];
const LEVELS = { Running: "good", Succeeded: "good", Completed: "good", Failed: "bad" };

export function mount(main, { store }) {
  const list = table("GPUWorkloads", COLUMNS);
  const note = h("p");
  main.append(h("div", { class: "head" }, h("h1", {}, "Workloads"), note), h("div", { class: "panel" }, list.root));
  return {
    update(changed) {
      if (!changed.has("workloads")) return;
      const rows = store.items("workloads").sort((a, b) => (`${a.namespace}/${a.name}` < `${b.namespace}/${b.name}` ? -1 : 1));
      note.textContent = plural(rows.length, "GPUWorkload");
      keyed(list.body, rows, (row) => `${row.namespace}/${row.name}`, (row) => cells(COLUMNS, [
        `${row.namespace}/${row.name}`, tag(row.phase || "–", LEVELS[row.phase]), row.gpu_count, row.priority, row.strategy, nodeLink(row.node), row.retries, row.created ? time(row.created) : "–", row.message,
      ]));
    },
  };
}
