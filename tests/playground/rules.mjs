// What the tests ask of the page's own rules: JSON of cases in, JSON of answers out.

import { readFileSync } from "node:fs";
import { runInThisContext } from "node:vm";

const source = new URL("../", process.argv[2]);
globalThis.document = { documentElement: {} };
globalThis.matchMedia = () => ({ addEventListener() {} });
runInThisContext(readFileSync(new URL("static/vendor/d3.min.js", source), "utf8"));
const from = (name) => import(new URL(`${name}.js`, source));
const modules = ["static/scale", "static/curve", "static/ledger", "static/cells", "static/fits", "play/loading", "play/panels/controls", "play/engine/switches", "play/engine/arm", "play/engine/tasks", "play/text"];
const [{ suited }, { seriesOf }, { largest }, { neighbour }, { why }, { readSafetensors, readSettings, readTokens, taken }, { command }, { sound }, { Arm }, { charactersIn }, { TEXT }] = await Promise.all(modules.map(from));

function loaded({ settings, toml, tokens, shapes }) {
  const weights = Object.fromEntries(Object.entries(shapes).map(([a, shape]) => [a, { shape, values: new Float64Array(shape.reduce((x, y) => x * y, 1)) }]));
  const all = toml ? readSettings(toml) : settings;
  const wrong = why(all, tokens, 1000);
  return wrong || taken({ settings: all, tokens, weights }).arm;
}

// What an arm shows before its first step and after some, and what it writes when its weights are no numbers.
function watched({ layers, steps }) {
  const arm = new Arm({ task: "text", text: TEXT, seed: 1, layers }, sound({}));
  const before = arm.look(arm.task.sentence).gradients;
  arm.run(steps);
  const { weights, moved, sentence } = arm.look(arm.task.sentence);
  const named = (numbers) => Object.fromEntries(arm.model.entries.map((e) => [e.address, [...numbers.subarray(e.start, e.start + e.size)]]));
  const shown = { none: before.every(Number.isNaN), sizes: arm.model.sizes, first: named(arm.origin), now: named(weights), moved, sentence };
  arm.model.weights.fill(NaN);
  return { ...shown, written: arm.write(sentence, 5) };
}

function refused({ header, tokenizer }) {
  try {
    if (tokenizer) return readTokens(tokenizer);
    const text = new TextEncoder().encode(header);
    const bytes = new Uint8Array(8 + text.length + 16);
    new DataView(bytes.buffer).setBigUint64(0, BigInt(text.length), true);
    bytes.set(text, 8);
    return readSafetensors(bytes.buffer);
  } catch (error) {
    return error.message;
  }
}

const ASKED = {
  watched,
  refused,
  characters: ({ text, tokens }) => [charactersIn(text, tokens), charactersIn(text, tokens, false)],
  suited({ values }) {
    const { position, ...scale } = suited(values);
    return { ...scale, positions: values.map(position) };
  },
  seriesOf: ({ room }) => seriesOf(room, "norm", "W", false),
  largest: ({ rows }) => largest(rows),
  neighbour: ({ placed, at, down }) => neighbour(placed, at, down),
  loaded,
  command: ({ arm }) => command(sound(arm), { layers: 2 }),
};
const cases = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(cases.map((asked) => ASKED[asked.ask](asked))));
