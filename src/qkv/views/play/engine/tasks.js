// @ts-check
// What is learned. A task is { name, label, about, tokens, batch(step), validation, counted, sentence, floor }; a batch is
// { ids, targets, batch, length }, and a target of -1 asks nothing at that position. Every batch is a pure function of
// (seed, task, step), so both arms of a race read the same.

import { below, shuffled, stream } from "./random.js";

export const D_MODEL = 32;
export const N_CTX = 32;
export const BATCH = 32;
const LARGEST_VOCABULARY = 120;
const COUNTED_BATCHES = 64;
const UNKNOWN = ["[UNK]", "\ufffd"]; // the token of all other characters: of a run, and of a text with too many kinds
const LETTERS = [..."abcdefghijklmnopqrstuvwxyz"];

// Rows of equal length, each { ids, targets }, as one batch.
function together(rows) {
  const length = rows[0].ids.length;
  const join = (key) => Int32Array.from(rows.flatMap((row) => row[key]));
  return { ids: join("ids"), targets: join("targets"), batch: rows.length, length };
}

// Input and target of one sequence: each token is asked for the next, from position `first` on.
function next(sequence, first = 0) {
  const ids = sequence.slice(0, -1);
  return { ids, targets: ids.map((_, i) => (i >= first ? sequence[i + 1] : -1)) };
}

// A task whose sequences are made afresh by `make(uniform)`; validation is a batch of its own.
function generated(seed, name, rows, make) {
  const batch = (...names) => {
    const uniform = stream(seed, name, ...names);
    return together(Array.from({ length: rows }, () => make(uniform)));
  };
  return { batch: (step) => batch("batch", step), validation: batch("validation"),
    counted: () => Array.from({ length: COUNTED_BATCHES }, (_, i) => batch("counted", i)) };
}

// The characters of a text as tokens: the text's own most frequent ones, or those that a model was given.
function alphabet(all, given) {
  if (given) return [given, Math.max(...UNKNOWN.map((token) => given.indexOf(token)))];
  const counts = new Map();
  for (const c of all) counts.set(c, (counts.get(c) ?? 0) + 1);
  const kept = [...counts].sort((a, b) => b[1] - a[1]).slice(0, LARGEST_VOCABULARY - 1).map(([c]) => c).sort();
  const tokens = counts.size > kept.length ? [...kept, UNKNOWN[1]] : kept;
  return [tokens, tokens.length - 1];
}

// How many characters of a text are tokens, of the `given` ones where there are such; with `unknown`, those too that become
// the token of what is unknown.
export function charactersIn(text, given = null, unknown = true) {
  const all = [...text];
  if (!given || (unknown && UNKNOWN.some((token) => given.includes(token)))) return all.length;
  const tokens = new Set(given);
  return all.filter((c) => tokens.has(c)).length;
}

function characters(seed, { text, given }) {
  const all = [...text];
  const [tokens, unknown] = alphabet(all, given);
  const at = new Map(tokens.map((c, i) => [c, i]));
  const ids = all.map((c) => at.get(c) ?? unknown).filter((id) => id >= 0);
  const cut = Math.floor(ids.length * 0.9);
  const [train, rest] = [ids.slice(0, cut), ids.slice(cut)];
  const window = (from, start) => next(from.slice(start, start + N_CTX + 1));
  const places = Array.from({ length: Math.min(BATCH, Math.floor((rest.length - 1) / N_CTX)) }, (_, i) => i * N_CTX);
  return {
    tokens,
    batch(step) {
      const uniform = stream(seed, "text", "batch", step);
      return together(Array.from({ length: BATCH }, () => window(train, below(uniform, train.length - N_CTX))));
    },
    validation: together(places.map((start) => window(rest, start))),
    counted: () => [together([next(train)])],
    sentence: ids.slice(0, N_CTX),
  };
}

function recall(seed) {
  const tokens = LETTERS.slice(0, 20);
  const task = generated(seed, "recall", BATCH, (uniform) => {
    const block = shuffled(tokens.keys(), uniform).slice(0, 6 + below(uniform, 7));
    return next(Array.from({ length: N_CTX + 1 }, (_, i) => block[i % block.length]), block.length);
  });
  return { ...task, tokens, sentence: [...task.validation.ids.slice(0, N_CTX)] };
}

function sort(seed) {
  const tokens = [...LETTERS.slice(0, 12), "→"];
  const task = generated(seed, "sort", BATCH, (uniform) => {
    const drawn = Array.from({ length: 14 }, () => below(uniform, 12));
    return next([...drawn, 12, ...[...drawn].sort((a, b) => a - b)], 14);
  });
  return { ...task, tokens, sentence: [...task.validation.ids.slice(0, 28)] };
}

const MODULUS = 23;

function addition(seed) {
  const tokens = [...Array.from({ length: MODULUS }, (_, i) => String(i)), "+", "="];
  const pairs = shuffled(Array(MODULUS * MODULUS).keys(), stream(seed, "addition", "pairs"));
  const cut = Math.floor(pairs.length * 0.8);
  const [train, rest] = [pairs.slice(0, cut), pairs.slice(cut)];
  const row = (pair) => {
    const [a, b] = [Math.floor(pair / MODULUS), pair % MODULUS];
    return next([a, MODULUS, b, MODULUS + 1, (a + b) % MODULUS], 3);
  };
  return {
    tokens,
    batch(step) {
      const uniform = stream(seed, "addition", "batch", step);
      return together(Array.from({ length: 256 }, () => row(train[below(uniform, train.length)])));
    },
    validation: together(rest.map(row)),
    counted: () => [together(train.map(row))],
    sentence: row(rest[0]).ids,
  };
}

// Words of a kind share their contexts and never stand together; a verb and its objects stand together.
export const KINDS = {
  animals: ["cat", "dog", "fox", "cow"],
  people: ["king", "queen", "child", "cook"],
  drinks: ["tea", "milk", "wine", "water"],
  foods: ["bread", "cheese", "rice", "soup"],
  places: ["garden", "kitchen", "forest", "castle"],
};
const PATTERNS = [["the", "animals", "eats", "foods"], ["the", "people", "drinks", "drinks:"], ["the", "people", "cooks", "foods"],
  ["the", "animals", "sleeps", "in", "the", "places"], ["the", "people", "walks", "to", "the", "places"], ["the", "people", "sees", "the", "animals"]];

function words(seed) {
  const tokens = ["the", ".", ...["eats", "drinks", "cooks", "sleeps", "walks", "sees"], "in", "to", ...Object.values(KINDS).flat()];
  const id = new Map(tokens.map((word, i) => [word, i]));
  const slot = (word, uniform) => {
    const kind = KINDS[word.replace(":", "")];
    const isKind = kind && word !== "drinks";
    return id.get(isKind ? kind[below(uniform, kind.length)] : word);
  };
  const task = generated(seed, "words", BATCH, (uniform) => {
    const sequence = [];
    while (sequence.length <= N_CTX) {
      sequence.push(...PATTERNS[below(uniform, PATTERNS.length)].map((word) => slot(word, uniform)), id.get("."));
    }
    return next(sequence.slice(0, N_CTX + 1));
  });
  const kinds = Object.values(KINDS).map((kind) => kind.map((word) => id.get(word)));
  const beside = [["drinks", "drinks"], ["eats", "foods"], ["cooks", "foods"]].flatMap(([verb, kind]) => KINDS[kind].map((word) => [id.get(verb), id.get(word)]));
  return { ...task, tokens, kinds, beside, sentence: [...task.validation.ids.slice(0, N_CTX)] };
}

export const TASKS = {
  text: { label: "next character", make: characters, about: "Learn to continue a text, one character at a time. The last tenth is kept aside and never trained on. The text that is there is short: when the validation loss turns up, the model has begun to know it by heart." },
  recall: { label: "recall", make: recall, about: "A random block of 6 to 12 letters, repeated. After the first pass, each next letter is the one that followed the same letter last time. Two layers can find it together: an induction head." },
  sort: { label: "sort", make: sort, about: "Fourteen letters in any order, an arrow, the same letters in order. Only what follows the arrow counts." },
  addition: { label: "clock addition", make: addition, about: `a + b = (a + b) modulo ${MODULUS}. A fifth of the ${MODULUS * MODULUS} sums is never shown and serves as validation.` },
  words: { label: "words that share contexts", make: words, about: "Small sentences in which cat, dog, fox and cow stand in the same places, and never beside each other. Do their rows of W_E become similar?" },
};

// `given`: the tokens of a run that is gone on from.
export function makeTask(name, seed, text, given) {
  const task = TASKS[name].make(seed, { text, given });
  return { name, ...TASKS[name], ...task };
}
