// @ts-check
// The weights of a run, from the files of its folder, as the playground takes them: { name, step, tokens, sizes, arm, weights }.
// Every mistake is an Error whose sentence the page shows. safetensors hold names and numbers; nothing in them could run.

import { unpack } from "../static/decode.js";
import { sharesKeys, why } from "../static/fits.js";
import { catalogue } from "./engine/transformer.js";

const LONGEST_HEADER = 1 << 20;
const NO_SAFETENSORS = "This is no safetensors file.";
const WANTED = "Choose the files model.safetensors, config.toml and tokenizer.json of a run's folder, all three together.";

// What a text of JSON holds; an Error that says `wrong` where it is none, or no object.
function json(text, wrong) {
  try {
    const found = JSON.parse(text);
    if (found !== null && typeof found === "object") return found;
  } catch {
    // told below
  }
  throw new Error(wrong);
}

// bytes of a safetensors file -> { facts, tensors: address -> { shape, values } }
export function readSafetensors(buffer) {
  const view = new DataView(buffer);
  const length = buffer.byteLength >= 8 ? Number(view.getBigUint64(0, true)) : Infinity;
  if (length > LONGEST_HEADER || 8 + length > buffer.byteLength) throw new Error(NO_SAFETENSORS);
  const { __metadata__: facts = {}, ...rows } = json(new TextDecoder().decode(new Uint8Array(buffer, 8, length)), NO_SAFETENSORS);
  const tensors = {};
  for (const [address, row] of Object.entries(rows)) {
    const { dtype, shape, data_offsets: [from, to] = [] } = row ?? {};
    if (!Array.isArray(shape) || !Number.isInteger(from)) throw new Error(NO_SAFETENSORS);
    const size = shape.reduce((a, b) => a * b, 1);
    if (dtype !== "F32") throw new Error(`${address} is stored as ${dtype}; the playground reads F32.`);
    if (from < 0 || to - from !== 4 * size || 8 + length + to > buffer.byteLength) throw new Error(`${address} is cut short: the file is damaged.`);
    tensors[address] = { shape, values: Float64Array.from({ length: size }, (_, i) => view.getFloat32(8 + length + from + 4 * i, true)) };
  }
  return { facts, tensors };
}

// The plain `key = value` lines of a config.toml that the playground asks for, whatever table they stand in; a list as text.
export function readSettings(text) {
  const found = {};
  let table = "";
  for (const line of text.split("\n")) {
    table = line.match(/^\[([\w.]+)\]/)?.[1] ?? table;
    const [, key, value] = line.match(/^(\w+) = (.+?)\s*$/) ?? [];
    if (!key || !(["model", "model.sizes", "model.layout"].includes(table) || (!table && key === "changes"))) continue;
    found[key] = value === "true" ? true : value === "false" ? false : value.startsWith('"') ? value.slice(1, -1) : value.startsWith("[") ? value : Number(value);
  }
  return found;
}

// The vocabulary of a tokenizer.json in order, null where its tokens are not single characters.
export function readTokens(text) {
  const { model, added_tokens: added = [] } = json(text, "tokenizer.json is no JSON: the file is damaged.");
  const special = new Set(added.map((token) => token.content));
  const rows = Object.entries(model?.vocab ?? {}).sort((a, b) => a[1] - b[1]).map(([token]) => token);
  return model?.type === "WordLevel" && rows.every((token) => special.has(token) || [...token].length === 1) ? rows : null;
}

// Everything there is about a run -> what the playground takes. `weights`: address -> { shape, values }.
export function taken({ name, step, settings, tokens, weights }) {
  const parameters = Object.values(weights).reduce((sum, { values }) => sum + values.length, 0);
  const wrong = why(settings, tokens, parameters);
  if (wrong) throw new Error(wrong);
  const { d_vocab, d_model, d_mlp, n_layers, n_heads, n_ctx, positions, scale, skip } = settings;
  const sizes = { d_vocab, d_model, d_mlp, n_layers, n_heads, n_ctx };
  const wired = { positions: positions === "learned", shared: sharesKeys(settings) };
  for (const { address, shape } of catalogue(sizes, wired)) {
    const found = weights[address]?.shape.join(" × ");
    if (found !== shape.join(" × ")) throw new Error(`${address} is ${found ?? "missing"}; its configuration says ${shape.join(" × ")}. Are these files of one run?`);
  }
  if (tokens.length !== d_vocab) throw new Error(`The tokenizer has ${tokens.length} tokens and the model ${d_vocab}. Are these files of one run?`);
  return { name, step, tokens, sizes, arm: { ...wired, scale, skip }, weights: Object.fromEntries(Object.entries(weights).map(([address, { values }]) => [address, values])) };
}

// The payload of a section (views/sections/training_in_page.py).
export const fromSection = (section) => taken({ ...section, weights: Object.fromEntries(Object.entries(section.weights).map(([address, packed]) => {
  const { shape, values } = unpack(packed);
  return [address, { shape, values: Float64Array.from(values) }];
})) });

// Files that a reader chose: a run's three, or one that the playground saved itself.
export async function fromFiles(files) {
  const named = (end) => files.find((file) => file.name.endsWith(end));
  const [weightsFile, config, tokenizer] = [".safetensors", ".toml", "tokenizer.json"].map(named);
  if (!weightsFile) throw new Error(WANTED);
  const { facts, tensors } = readSafetensors(await weightsFile.arrayBuffer());
  const own = facts.playground ? json(facts.playground, `What ${weightsFile.name} says of itself cannot be read: the file is damaged.`) : null;
  if (!own && !(config && tokenizer)) throw new Error(`${weightsFile.name} alone does not say how many heads there are and which character each row is. ${WANTED}`);
  const settings = own?.settings ?? readSettings(await config.text());
  const tokens = own?.tokens ?? readTokens(await tokenizer.text());
  return taken({ name: weightsFile.name, step: Number(facts.step ?? facts.steps) || null, settings, tokens, weights: tensors });
}
