// @ts-check
// One sentence through a model and back, as plain numbers: everything that the walk draws of one token and one head of the
// first layer. A bar over a name is the gradient of the mean loss with respect to it, here the ending `Bar`.

const row = (values, i, width) => Array.from(values.subarray(i * width, (i + 1) * width));
const dot = (a, b) => a.reduce((sum, v, i) => sum + v * b[i], 0);
export const norm = (values) => Math.sqrt(dot(values, values));

// vector [d] times the transpose of W [d, d]
const timesTransposed = (vector, W) => vector.map((_, r) => dot(vector, W.subarray(r * vector.length, (r + 1) * vector.length)));

// Words and signs of a text as the model's tokens -> { ids, unknown }; a word is what \w+ finds in qkv's tokenizers.
export function read(text, { tokens, kind }) {
  const found = kind === "word" ? text.match(/[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}²³¹¼½¾]+|[^\s\p{Alphabetic}\p{M}\p{Nd}\p{Pc}²³¹¼½¾]/gu) ?? [] : [...text];
  const at = (word) => [word, word.toLowerCase()].map((w) => tokens.indexOf(w)).find((id) => id >= 0) ?? -1;
  return { ids: found.map(at).filter((id) => id >= 0), unknown: found.filter((word) => at(word) < 0) };
}

// ids -> { loss, losses, probabilities, at(i, head) }; each position is asked for the next token, the last for none.
export function trace(model, ids) {
  const [n, d, V] = [ids.length, model.sizes.d_model, model.sizes.d_vocab];
  const targets = Int32Array.from(ids, (_, i) => (i + 1 < n ? ids[i + 1] : -1));
  const { loss } = model.forward(Int32Array.from(ids), 1, n, targets);
  const probabilities = Array.from({ length: n }, (_, i) => row(model.top.out, i, V));
  model.backward();
  const losses = probabilities.map((p, i) => (targets[i] < 0 ? NaN : -Math.log(p[targets[i]])));
  return { loss, losses, probabilities, targets, at: (i, head) => ofToken(model, ids, i, head, d, V) };
}

function ofToken(model, ids, i, head, d, V) {
  const [layer, back, n, width] = [model.layers[0], model.back, ids.length, d / model.sizes.n_heads];
  const ofHead = (values, j) => row(values, j, d).slice(head * width, (head + 1) * width);
  const all = (values) => ids.map((_, j) => ofHead(values, j));
  const [q, k, v, z, zBar] = [ofHead(layer.q, i), all(layer.k), all(layer.v), ofHead(layer.z, i), ofHead(back.z, i)];
  const seen = Array.from({ length: i + 1 }, (_, j) => j);
  const scores = seen.map((j) => dot(q, k[j]) * model.scale);
  const pattern = seen.map((j) => layer.pattern[head * n * n + i * n + j]);
  const patternBar = seen.map((j) => dot(zBar, v[j]));
  const mean = dot(pattern, patternBar);
  const W = (name) => model.W[`L0.${name}`];
  const parts = { q: timesTransposed(row(back.q, i, d), W("W_Q")), k: timesTransposed(row(back.k, i, d), W("W_K")), v: timesTransposed(row(back.v, i, d), W("W_V")) };
  const outOf = row(layer.z, i, d);
  return {
    row: row(model.W.W_E, ids[i], d), rowBar: row(model.G.W_E, ids[i], d), x: row(layer.h1, i, d), xBar: row(back.x, i, d),
    q, qBar: ofHead(back.q, i), k: k[i], kBar: ofHead(back.k, i), v: v[i], vBar: ofHead(back.v, i),
    scores, scoresBar: pattern.map((a, j) => a * (patternBar[j] - mean)), pattern, patternBar, z, zBar,
    out: outOf.map((_, c) => outOf.reduce((sum, value, r) => sum + value * W("W_O")[r * d + c], 0)), outBar: row(back.around, i, d),
    logitsBar: row(model.top.out, i, V), parts, around: model.wiring.skip ? row(back.around, i, d) : new Array(d).fill(0),
    positions: ids.map((id, j) => (id === ids[i] ? j : -1)).filter((j) => j >= 0),
  };
}
