// What the tests ask of the engine: JSON of cases in, JSON of losses, gradients and curves out.

import { readFileSync } from "node:fs";

const [source] = process.argv.slice(2);
const from = (name) => import(new URL(`engine/${name}`, source));
const [{ Transformer }, { OPTIMIZERS }, { start, trained }, { exp, normalProduct }, { hasVectors }, { baselines, kneserNey, rows }, { makeTask }] =
  await Promise.all(["transformer.js", "optimizer.js", "start.js", "special.js", "linear.js", "baselines.js", "tasks.js"].map(from));

function made({ sizes, wiring, weights, held = {}, rows, vectors = true }) {
  const model = new Transformer(sizes, wiring, rows, vectors);
  start(model, 0, held, Object.fromEntries(Object.entries(weights).map(([address, values]) => [address, Float64Array.from(values)])));
  return model;
}

const lists = (model, views) => Object.fromEntries(model.entries.map(({ address }) => [address, [...views[address]]]));

function gradients(asked) {
  const { batch, length, ids, targets } = asked;
  const model = made({ ...asked, rows: batch * length + 3 });
  model.forward(Int32Array.from(ids).fill(0), batch, length, Int32Array.from(targets)); // leaves no trace
  const { loss, accuracy } = model.forward(Int32Array.from(ids), batch, length, Int32Array.from(targets));
  model.backward();
  return { loss, accuracy, vectors: hasVectors(), gradients: lists(model, model.G) };
}

function curve(asked) {
  const { batch, length, steps, held, optimizer, rate } = asked;
  const model = made({ ...asked, rows: batch * length });
  const rule = OPTIMIZERS[optimizer](model.weights.length);
  const losses = steps.map(({ ids, targets }) => {
    const { loss } = model.forward(Int32Array.from(ids), batch, length, Int32Array.from(targets));
    model.backward();
    rule.step(model.weights, model.gradients, trained(model, held), rate);
    return loss;
  });
  return { losses, weights: lists(model, model.W) };
}

function gelu({ points }) {
  const [out, slope] = [new Float64Array(points.length), new Float64Array(points.length)];
  normalProduct(Float64Array.from(points), out, slope, points.length);
  return [[...out], [...slope]];
}

// Losses of n-grams of the orders 1 to `most`, of windows of `val` counted on `train`, each one text.
function ngrams({ train, val, d_vocab, most }) {
  const whole = (ids) => rows([{ ids: Int32Array.from(ids.slice(0, -1)), targets: Int32Array.from(ids.slice(1)), batch: 1, length: ids.length - 1 }]);
  return kneserNey(whole(train), val.flatMap(whole), d_vocab, most);
}

const plain = ({ ids, targets, length }) => ({ ids: [...ids], targets: [...targets], length });

// The lines of a task, the data that they are counted on, and the data that they are scored on.
function lines({ task, seed }) {
  const made = makeTask(task, seed);
  return { lines: baselines(made), counted: made.counted().map(plain), validation: plain(made.validation), d_vocab: made.tokens.length };
}

const ASKED = { lines, gradients, curve, gelu, ngrams, exp: ({ points }) => points.map((x) => exp(x)) };
const cases = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(cases.map((asked) => ASKED[asked.ask](asked))));
