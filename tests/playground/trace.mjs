// What the tests ask of the page "What is trained in self-attention?": a traced sentence, as JSON.

import { readFileSync } from "node:fs";

const [source] = process.argv.slice(2);
const { Transformer } = await import(new URL("engine/transformer.js", source));
const { read, trace } = await import(new URL("../learn/trace.js", source));

const asked = JSON.parse(readFileSync(0, "utf-8"));
const answers = asked.map(({ words, sizes, wiring, weights, ids, i, head }) => {
  if (words) return read(words, { tokens: [], kind: "word" }).unknown;
  const model = new Transformer(sizes, wiring, sizes.n_ctx);
  for (const { address } of model.entries) model.W[address].set(weights[address]);
  const shown = trace(model, ids);
  return { loss: shown.loss, at: shown.at(i, head), gradients: Object.fromEntries(model.entries.map(({ address }) => [address, [...model.G[address]]])) };
});
process.stdout.write(JSON.stringify(answers));
