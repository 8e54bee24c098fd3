// What counting alone reaches, in nats per asked-for token: counted on training data, scored on the same validation
// tokens as the models.
//
//   uniform  log V
//   unigram  p(b) = (n(b) + 1) / (n + V)                   (add one; Laplace)
//   bigram   p(b | a) = (n(ab) + m p(b)) / (n(a) + m), m = 2   (Dirichlet prior; MacKay and Peto 1995)

const PRIOR = 2;

function pairs(batches) {
  return batches.flatMap(({ ids, targets }) => [...targets].map((target, i) => [ids[i], target]).filter(([, target]) => target >= 0));
}

export function baselines(task) {
  const n = task.tokens.length;
  const [single, before, double] = [new Float64Array(n), new Float64Array(n), new Float64Array(n * n)];
  const seen = pairs(task.counted());
  for (const [a, b] of seen) {
    single[b]++;
    before[a]++;
    double[a * n + b]++;
  }
  const unigram = (b) => (single[b] + 1) / (seen.length + n);
  const bigram = (a, b) => (double[a * n + b] + PRIOR * unigram(b)) / (before[a] + PRIOR);
  const asked = pairs([task.validation]);
  const mean = (of) => -asked.reduce((sum, pair) => sum + Math.log(of(...pair)), 0) / asked.length;
  return [
    { label: "uniform", nats: Math.log(n) },
    { label: "unigram", nats: mean((_, b) => unigram(b)) },
    { label: "bigram", nats: mean(bigram) },
  ];
}

// How often each token comes as input in the training data that is counted.
export function inputCounts(task) {
  const counts = new Float64Array(task.tokens.length);
  for (const { ids } of task.counted()) for (const id of ids) counts[id]++;
  return counts;
}
