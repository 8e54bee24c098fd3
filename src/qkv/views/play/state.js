// @ts-check
// Everything that decides what the page shows, and how it travels in the address after "#". A link that somebody wrote by
// hand, or broke, gives the nearest sound state, never an error.

import { SWITCHES, USUAL_RATE, sound, usual } from "./engine/switches.js";
import { TASKS } from "./engine/tasks.js";
import { TEXT } from "./text.js";

export const SHORTEST_TEXT = 400;
export const LONGEST_TEXT = 300000;
const FURTHEST = 20000; // steps that a link may ask a page to take by itself

export const fresh = () => ({ task: "text", seed: 1, layers: 2, text: TEXT, sentence: "", token: null, speed: "full", lesson: null, step: 0,
  packed: null, watched: { mode: "weights", address: "W_E", a: [0, 0], b: [0, 0] },
  a: usual(), b: { ...usual(), W_E: "freeze" } });

const armText = (arm) => [...SWITCHES.filter((s) => arm[s.name] !== s.usual).map((s) => `${s.name}:${arm[s.name]}`),
  ...(arm.rate === USUAL_RATE[arm.optimizer] ? [] : [`rate:${arm.rate}`])].join(",");

function armFrom(text) {
  const said = Object.fromEntries(text.split(",").filter(Boolean).map((part) => part.split(":")));
  for (const { name, options } of SWITCHES) said[name] = options.find(([value]) => String(value) === said[name])?.[0];
  return sound(said);
}

export function toHash(state) {
  const words = new URLSearchParams({ task: state.task, seed: state.seed, layers: state.layers, a: armText(state.a), b: armText(state.b) });
  const { step, lesson, speed, token, sentence, watched: { mode, address } } = state;
  const said = { step, lesson, speed: speed !== "full" && speed, token, sentence, packed: state.text !== TEXT && state.packed, show: mode !== "weights" && mode, matrix: address !== "W_E" && address };
  for (const [name, value] of Object.entries(said)) if (value) words.set(name, value);
  for (const arm of ["a", "b"]) if (state.watched[arm].some(Boolean)) words.set(`head-${arm}`, `L${state.watched[arm][0]}.H${state.watched[arm][1]}`);
  return `#${words}`;
}

const whole = (text, low, high, otherwise) => {
  const value = Number(text);
  return text && Number.isInteger(value) && value >= low && value <= high ? value : otherwise;
};

// What of the state is only watched: which numbers of the matrices, which matrix, which head of each arm.
function watchedFrom(words) {
  const { mode, address } = fresh().watched;
  const head = (arm) => (words.get(`head-${arm}`) ?? "").match(/^L([0-9])\.H([0-9]{1,2})$/)?.slice(1).map(Number) ?? [0, 0];
  const matrix = words.get("matrix") ?? "";
  return { mode: ["change", "gradient"].includes(words.get("show")) ? words.get("show") : mode,
    address: /^(W_pos|W_U|L[0-9]\.W_(Q|K|V|O|in|out))$/.test(matrix) ? matrix : address, a: head("a"), b: head("b") };
}

// A packed text travels in it as letters; `packed` keeps them, and who opens the link unpacks them.
export function fromHash(hash) {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const state = fresh();
  return { ...state,
    task: Object.hasOwn(TASKS, words.get("task") ?? "") ? words.get("task") : state.task,
    seed: whole(words.get("seed"), 0, 999999, state.seed), layers: whole(words.get("layers"), 1, 2, state.layers),
    step: Math.min(FURTHEST, whole(words.get("step"), 0, Infinity, 0)), token: words.get("token"), lesson: words.get("lesson"), sentence: words.get("sentence") ?? "",
    speed: ["1", "5", "full"].includes(words.get("speed")) ? words.get("speed") : "full",
    packed: words.get("packed"), watched: watchedFrom(words),
    a: words.has("a") ? armFrom(words.get("a")) : state.a, b: words.has("b") ? armFrom(words.get("b")) : state.b };
}
