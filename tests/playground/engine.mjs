// What the tests ask of the engine: JSON of cases in, JSON of losses, gradients and curves out.

import { readFileSync } from "node:fs";

const [source] = process.argv.slice(2);
const from = (name) => import(new URL(name, source));
const [{ Transformer }, { OPTIMIZERS }, { start, trained }, { erf }, { hasVectors }] = await Promise.all(["transformer.js", "optimizer.js", "start.js", "functions.js", "linear.js"].map(from));

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

const ASKED = { gradients, curve, erf: ({ points }) => points.map((x) => erf(x)) };
const cases = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(cases.map((asked) => ASKED[asked.ask](asked))));
