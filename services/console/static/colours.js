// What colours mean. Ramps go from little to much and are told apart by lightness, also without colour vision.

const RAMPS = {
  light: ["#e3e9ee", "#bddfe0", "#7cc0bf", "#36938f", "#1c6470", "#173d5b"],
  dark: ["#1e2832", "#1f4450", "#1f6c70", "#2f9a86", "#86c66c", "#f2e155"],
};
const KINDS = {
  light: ["#2f7fb8", "#c47a1f", "#5d9e3c", "#a2559c", "#c2544d", "#2a9d8f", "#7a6ff0", "#8d6e53", "#d0699b", "#75818c"],
  dark: ["#5aa9e0", "#e0a04a", "#86c06a", "#c68ac0", "#e5837c", "#4fc3b5", "#a29bfe", "#b9987b", "#eb97bf", "#97a4b0"],
};

export function colours() {
  const style = getComputedStyle(document.documentElement);
  const theme = document.documentElement.dataset.theme === "dark" ? "dark" : "light";
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    theme,
    ramp: RAMPS[theme],
    kinds: KINDS[theme],
    text: read("--text"),
    dim: read("--dim"),
    line: read("--line-strong"),
    ground: read("--surface"),
    good: read("--good"),
    warn: read("--warn"),
    bad: read("--bad"),
    none: theme === "dark" ? "#1e2832" : "#e3e9ee",
    taken: read("--c1"),
    free: theme === "dark" ? "#2f4a4a" : "#bfe0dc",
  };
}

const scales = new Map();

/* Of a part from 0 to 1, in 32 steps. */
export function rampColour(ramp, part) {
  const step = Math.round(Math.max(0, Math.min(1, part)) * 31);
  const key = ramp[5];
  if (!scales.has(key)) scales.set(key, Array.from({ length: 32 }, (_, index) => mix(ramp, index / 31)));
  return scales.get(key)[step];
}

function mix(ramp, part) {
  const place = part * (ramp.length - 1);
  const low = Math.min(ramp.length - 2, Math.floor(place));
  const share = place - low;
  const [from, to] = [ramp[low], ramp[low + 1]].map((text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)));
  return `rgb(${from.map((one, index) => Math.round(one + (to[index] - one) * share)).join(" ")})`;
}

export function kindColour(kinds, name) {
  let sum = 7;
  for (let index = 0; index < name.length; index += 1) sum = (sum * 31 + name.charCodeAt(index)) >>> 0;
  return kinds[sum % kinds.length];
}

export function isTroubled(node, gpu) {
  if (gpu.health === "unhealthy" || gpu.health === "lost") return "bad";
  return gpu.closed || node.untrusted.length || gpu.health === "unknown" ? "warn" : "";
}

export function cellColour(scene, node, gpu, reading) {
  const { by, colours: set } = scene;
  if (by === "health") return gpu.health === "healthy" ? set.good : gpu.health === "unknown" ? set.dim : set.bad;
  if (by === "holder") {
    const pod = gpu.pods[0];
    return pod ? kindColour(set.kinds, pod.hidden ? "" : pod.namespace || "no pod") : set.none;
  }
  if (by === "slices") return gpu.mig ? set.none : rampColour(set.ramp, gpu.allocated / 1000);
  if (by === "allocated") return rampColour(set.ramp, gpu.allocated / 1000);
  const value = by === "memory" ? reading?.[1] : reading?.[0];
  if (value === null || value === undefined) return "";
  return rampColour(set.ramp, by === "memory" ? value / Math.max(1, gpu.memory_mib) : value / 100);
}
