// Finds nodes, GPUs, pods and namespaces in what is here; nothing is asked of the server.

import { fill, h } from "./dom.js";

const MOST = 30;

export class Search {
  constructor(store, go) {
    this.store = store;
    this.go = go;
    this.found = [];
    this.at = 0;
  }

  attach(input, list, form) {
    this.input = input;
    this.list = list;
    input.addEventListener("input", () => this.search());
    input.addEventListener("focus", () => this.search());
    input.addEventListener("keydown", (event) => this.key(event));
    input.addEventListener("blur", () => setTimeout(() => document.activeElement === this.input || this.close(), 150));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.open(this.found[this.at]);
    });
  }

  search() {
    const words = this.input.value.trim().toLowerCase();
    this.found = words ? this.matches(words) : [];
    this.at = 0;
    this.show();
  }

  matches(words) {
    const found = [];
    const pods = new Map();
    const spaces = new Set();
    const take = (kind, what, place) => {
      if (found.length < MOST && what.toLowerCase().includes(words)) found.push({ kind, what, place });
    };
    for (const node of this.store.items("nodes")) {
      take("node", node.node, `#/node/${encodeURIComponent(node.node)}`);
      for (const gpu of node.gpus) {
        if (words.length > 3) take("GPU", gpu.uuid, `#/node/${encodeURIComponent(node.node)}`);
        for (const pod of gpu.pods) if (pod.pod) pods.set(`${pod.namespace}/${pod.pod}`, pod);
      }
    }
    for (const pod of [...this.store.items("pending"), ...this.store.items("decisions")]) pods.set(`${pod.namespace}/${pod.pod}`, pod);
    for (const [name, pod] of pods) {
      spaces.add(pod.namespace);
      take("pod", name, `#/pod/${encodeURIComponent(pod.namespace)}/${encodeURIComponent(pod.pod)}`);
    }
    for (const space of spaces) take("namespace", space, `#/cluster?find=${encodeURIComponent(space)}&by=namespace`);
    return found;
  }

  show() {
    fill(this.list, this.found.map((one, index) => h("li", {
      id: `found-${index}`, role: "option", "aria-selected": String(index === this.at), onmousedown: () => this.open(one),
    }, h("span", { class: "kind" }, one.kind), h("span", { class: "what" }, one.what))));
    this.list.hidden = this.found.length === 0;
    this.input.setAttribute("aria-expanded", String(!this.list.hidden));
    if (this.found.length) this.input.setAttribute("aria-activedescendant", `found-${this.at}`);
    else this.input.removeAttribute("aria-activedescendant");
    this.list.children[this.at]?.scrollIntoView({ block: "nearest" });
  }

  key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key === "Escape") {
      this.input.value = "";
      this.close();
      this.input.blur();
    } else if (steps[event.key] && this.found.length) {
      event.preventDefault();
      this.at = (this.at + steps[event.key] + this.found.length) % this.found.length;
      this.show();
    }
  }

  open(one) {
    if (!one) return;
    this.input.value = "";
    this.close();
    this.input.blur();
    this.go(one.place);
  }

  close() {
    this.found = [];
    this.show();
  }
}
