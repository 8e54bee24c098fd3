// @ts-check
// What counting alone reaches, in nats per asked-for token: counted on training data, scored on the same validation
// tokens as the models, with the same context within each window.
//
//   uniform  log V
//   unigram  p(b) = (n(b) + 1) / (n + V)                   (add one; Laplace)
//   bigram   p(b | a) = (n(ab) + m p(b)) / (n(a) + m), m = 2   (Dirichlet prior; MacKay and Peto 1995)
//   n-gram   interpolated Kneser-Ney, its best order up to 8, where it beats the bigram   (as in qkv/data/baseline/ngrams.py)

const PRIOR = 2;
const MOST_ORDERS = 8;

function pairs(batches) {
  return batches.flatMap(({ ids, targets }) => [...targets].map((target, i) => [ids[i], target]).filter(([, target]) => target >= 0));
}

// Each row of batches as a string of one letter a token, and the places in it that are asked for.
export function rows(batches) {
  return batches.flatMap(({ ids, targets, batch, length }) => Array.from({ length: batch }, (_, row) => {
    const [from, to] = [row * length, (row + 1) * length];
    const all = [...ids.subarray(from, to), Math.max(0, targets[to - 1])];
    return { text: all.map((id) => String.fromCharCode(id + 1)).join(""), asked: all.map((_, i) => i).filter((i) => i > 0 && targets[from + i - 1] >= 0) };
  }));
}

const increment = (map, key, by = 1) => map.set(key, (map.get(key) ?? 0) + by);

// n-gram -> how often it ends at a place that is asked for
function counted(texts, order) {
  const counts = new Map();
  for (const { text, asked } of texts) for (const i of asked) if (i >= order - 1) increment(counts, text.slice(i - order + 1, i + 1));
  return counts;
}

// n-gram -> before how many different tokens it stands, from the counts of the order above
function continuations(longer) {
  const counts = new Map();
  for (const gram of longer.keys()) increment(counts, gram.slice(1));
  return counts;
}

// p(token | context) = max(c - D, 0) / c(context) + D N1+(context) / c(context) lower; `grams`: null where too near the beginning.
function interpolated(grams, counts, lower) {
  const [ones, twos] = [1, 2].map((n) => [...counts.values()].filter((c) => c === n).length);
  const discount = ones && twos ? ones / (ones + 2 * twos) : 0.5;
  const [totals, kinds] = [new Map(), new Map()];
  for (const [gram, count] of counts) {
    increment(totals, gram.slice(0, -1), count);
    increment(kinds, gram.slice(0, -1));
  }
  return lower.map((below, i) => {
    const total = grams[i] === null ? 0 : totals.get(grams[i].slice(0, -1)) ?? 0;
    if (!total) return below;
    return (Math.max(0, (counts.get(grams[i]) ?? 0) - discount) + discount * kinds.get(grams[i].slice(0, -1)) * below) / total;
  });
}

// Kneser and Ney 1995 -> the mean loss in nats of the orders 1 to `most`.
export function kneserNey(train, val, d_vocab, most) {
  const losses = [];
  const orders = Array.from({ length: most }, (_, n) => counted(train, n + 1));
  let lower = val.flatMap(({ asked }) => asked.map(() => 1 / d_vocab));
  for (let order = 1; order <= most; order++) {
    const grams = val.flatMap(({ text, asked }) => asked.map((i) => (i >= order - 1 ? text.slice(i - order + 1, i + 1) : null)));
    const plain = interpolated(grams, orders[order - 1], lower);
    losses.push(-plain.reduce((sum, p) => sum + Math.log(p), 0) / plain.length);
    if (order < most) lower = interpolated(grams, continuations(orders[order]), lower);
  }
  return losses;
}

export function baselines(task) {
  const n = task.tokens.length;
  const [single, before, double] = [new Float64Array(n), new Float64Array(n), new Float64Array(n * n)];
  const counts = task.counted();
  const seen = pairs(counts);
  for (const [a, b] of seen) {
    single[b]++;
    before[a]++;
    double[a * n + b]++;
  }
  const unigram = (b) => (single[b] + 1) / (seen.length + n);
  const bigram = (a, b) => (double[a * n + b] + PRIOR * unigram(b)) / (before[a] + PRIOR);
  const asked = pairs([task.validation]);
  const mean = (of) => -asked.reduce((sum, pair) => sum + Math.log(of(...pair)), 0) / asked.length;
  const orders = kneserNey(rows(counts), rows([task.validation]), n, MOST_ORDERS);
  const best = orders.indexOf(Math.min(...orders));
  const lines = [
    { label: "uniform", nats: Math.log(n) },
    { label: "unigram", nats: mean((_, b) => unigram(b)) },
    { label: "bigram", nats: mean(bigram) },
  ];
  return orders[best] < lines.at(-1).nats ? [...lines, { label: `${best + 1}-gram`, nats: orders[best] }] : lines;
}

// How often each token comes as input in the training data that is counted.
export function inputCounts(task) {
  const counts = new Float64Array(task.tokens.length);
  for (const { ids } of task.counted()) for (const id of ids) counts[id]++;
  return counts;
}
