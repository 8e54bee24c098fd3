// @ts-check
// What can be changed about an arm: one row a switch, its choices, and the same in the change language of qkv.

import { sharing } from "../../static/fits.js";

const HOW = [["train", "trained"], ["freeze", "frozen"]];
const WITH_IDENTITY = [...HOW, ["identity", "identity"]];
const yes = (on, off) => [[true, on], [false, off]];

// role: the colour; `says(value, layers)`: the option of `qkv train` that asks for the same, "" where that is the preset's.
export const SWITCHES = [
  { name: "W_E", label: "W_E, the embeddings", role: "E", options: HOW, usual: "train", says: held("W_E") },
  { name: "W_Q", label: "W_Q", role: "Q", options: WITH_IDENTITY, usual: "train", says: held("L*.W_Q") },
  { name: "W_K", label: "W_K", role: "K", options: WITH_IDENTITY, usual: "train", says: held("L*.W_K") },
  { name: "W_V", label: "W_V", role: "V", options: WITH_IDENTITY, usual: "train", says: held("L*.W_V") },
  { name: "W_O", label: "W_O", role: "O", options: WITH_IDENTITY, usual: "train", says: held("L*.W_O") },
  { name: "shared", label: "keys", role: "K", options: [[false, "own W_K"], [true, "W_K = W_Q"]], usual: false, says: (on, layers) => (on ? sharing(layers).map((change) => `--change '${change}'`).join(" ") : "") },
  { name: "heads", label: "heads", role: "Q", options: [[4, "four"], [1, "one"]], usual: 4, says: (n) => `--set n_heads=${n}` },
  { name: "scale", label: "scores", role: "K", options: yes("divided by √d_k", "not divided"), usual: true, says: set("scale") },
  { name: "positions", label: "positions", role: "E", options: yes("learned", "none"), usual: true, says: (on) => (on ? "" : "--set positions=none") },
  { name: "skip", label: "skip connections", role: "norm", options: yes("yes", "no"), usual: true, says: set("skip") },
  { name: "optimizer", label: "optimizer", role: "norm", options: [["adam", "Adam"], ["sgd", "SGD"]], usual: "adam", says: (kind) => `--set optimizer.${kind === "sgd" ? "kind=sgd,optimizer.momentum=0" : "beta2=0.999"}` },
];

export const RATES = { adam: [3e-4, 1e-3, 3e-3, 1e-2], sgd: [0.03, 0.1, 0.3, 1] };
export const USUAL_RATE = { adam: 3e-3, sgd: 0.3 };
export const LARGEST_RATE = 100;

function held(selector) {
  return (how) => (how === "freeze" ? `--freeze '${selector}'` : how === "identity" ? `--change '${selector}=identity'` : "");
}

function set(name) {
  return (on) => (on ? "" : `--set ${name}=false`);
}

/** @returns {Record<string, any>} */
export const usual = () => ({ ...Object.fromEntries(SWITCHES.map((s) => [s.name, s.usual])), rate: USUAL_RATE.adam });

// What an arm says about itself that differs from the usual.
export function differences(arm) {
  const own = SWITCHES.filter((s) => arm[s.name] !== s.usual).map((s) => `${s.label}: ${s.options.find(([v]) => v === arm[s.name])[1]}`);
  return arm.rate === USUAL_RATE[arm.optimizer] ? own : [...own, `learning rate ${arm.rate}`];
}

// A sound arm from anything, such as what stood in a link: unknown or impossible values become the usual.
export function sound(given) {
  const arm = usual();
  for (const { name, options } of SWITCHES) if (options.some(([v]) => v === given?.[name])) arm[name] = given[name];
  const rate = Number(given?.rate);
  arm.rate = rate > 0 && rate <= LARGEST_RATE ? rate : USUAL_RATE[arm.optimizer];
  if (arm.shared) arm.W_K = "train"; // there is no W_K of its own to hold
  return arm;
}

// How a model is wired, and which matrices are held how: kind -> "freeze" or "identity".
export function wiring(arm) {
  const { positions, scale, skip, shared, norms = true, tied = false } = arm;
  return { positions, scale, skip, shared, norms, tied };
}

export function heldKinds(arm) {
  return Object.fromEntries(["W_E", "W_Q", "W_K", "W_V", "W_O"].filter((kind) => arm[kind] !== "train").map((kind) => [kind, arm[kind]]));
}
