// @ts-check
// One arm of a race: a model, its optimizer, its task. It takes steps, and it can be looked at; looking changes nothing.

import { OPTIMIZERS } from "./optimizer.js";
import { Transformer } from "./transformer.js";
import { start, trained } from "./start.js";
import { heldKinds, wiring } from "./switches.js";
import { stream } from "./random.js";
import { BATCH, D_MODEL, N_CTX, makeTask } from "./tasks.js";

const VALIDATED_EVERY = 25;
const VALIDATED_TOO = [5, 10, 15]; // where a loss falls fastest

export class Arm {
  // shared: { task, text, seed, layers }; arm: see switches.js; given: the run to go on from (loading.js), or null.
  constructor(shared, arm, given = null) {
    this.task = makeTask(shared.task, shared.seed, shared.text, given?.tokens);
    this.seed = shared.seed;
    this.settings = arm;
    this.held = heldKinds(arm);
    const sizes = given ? { ...given.sizes, n_heads: arm.heads === 1 ? 1 : given.sizes.n_heads }
      : { d_vocab: this.task.tokens.length, d_model: D_MODEL, d_mlp: 4 * D_MODEL, n_layers: shared.layers, n_heads: arm.heads, n_ctx: N_CTX };
    const most = Math.max(BATCH * N_CTX, this.task.validation.ids.length);
    this.model = new Transformer(sizes, wiring(arm), most);
    start(this.model, shared.seed, this.held, given?.weights);
    this.origin = this.model.weights.slice();
    this.rule = OPTIMIZERS[arm.optimizer](this.model.weights.length);
    this.trained = trained(this.model, this.held);
    this.taken = 0;
  }

  // -> the loss on the batch before the model learned from it
  step() {
    const { model, task } = this;
    const { ids, targets, batch, length } = task.batch(this.taken);
    const { loss } = model.forward(ids, batch, length, targets);
    model.backward();
    this.rule.step(model.weights, model.gradients, this.trained, this.settings.rate);
    this.taken++;
    return loss;
  }

  validate() {
    const { ids, targets, batch, length } = this.task.validation;
    return { step: this.taken, ...this.model.forward(ids, batch, length, targets) };
  }

  // `steps` steps, and the validation where it falls due -> { losses, validations }
  run(steps) {
    const [losses, validations] = [[], []];
    for (let i = 0; i < steps; i++) {
      if (this.taken === 0) validations.push(this.validate());
      losses.push(this.step());
      if (this.taken % VALIDATED_EVERY === 0 || VALIDATED_TOO.includes(this.taken)) validations.push(this.validate());
    }
    return { losses, validations };
  }

  // Everything a watcher draws, as copies: weights, their start, the last gradient, patterns and likely next tokens.
  look(sentence) {
    const { model } = this;
    const ids = Int32Array.from(sentence);
    model.forward(ids, 1, ids.length, ids.map(() => -1));
    const n = ids.length;
    const patterns = model.layers.map((layer) => layer.pattern.slice(0, model.sizes.n_heads * n * n));
    const gradients = this.taken ? model.gradients.slice() : model.gradients.slice().fill(NaN); // none yet, which is not zero
    return { step: this.taken, weights: model.weights.slice(), gradients, patterns, sentence: [...ids], moved: this.moved(ids) };
  }

  // What it writes after the sentence: `count` tokens, each drawn by its probability; the same for the same step and seed.
  write(sentence, count) {
    const V = this.model.sizes.d_vocab;
    const uniform = stream(this.seed, "write", this.taken);
    const all = [...sentence];
    for (let i = 0; i < count; i++) {
      const ids = Int32Array.from(all.slice(-N_CTX));
      this.model.forward(ids, 1, ids.length, ids.map(() => -1));
      const at = (ids.length - 1) * V;
      if (!(this.model.top.out[at] >= 0)) break; // it has diverged: no probabilities to draw by
      let [rest, id] = [uniform(), 0];
      while (id < V - 1 && (rest -= this.model.top.out[at + id]) > 0) id++;
      all.push(id);
    }
    return all.slice(sentence.length);
  }

  // How q on the sentence moved since the start, layer by layer, split exactly: dq = dx W_Q + x dW_Q + dx dW_Q. Norms
  // relative to the first q.
  moved(ids) {
    const { model } = this;
    const [n, d] = [ids.length, model.sizes.d_model];
    const now = model.layers.map((layer) => layer.h1.slice(0, n * d));
    const present = model.weights.slice();
    model.weights.set(this.origin);
    model.forward(ids, 1, n, ids.map(() => -1));
    const before = model.layers.map((layer) => layer.h1.slice(0, n * d));
    const W0 = model.layers.map((_, i) => model.W[`L${i}.W_Q`].slice());
    model.weights.set(present);
    return now.map((x, i) => splitMove(before[i], x, W0[i], model.W[`L${i}.W_Q`], n, d));
  }
}

function splitMove(x0, x1, W0, W1, n, d) {
  const dx = x1.map((v, i) => v - x0[i]);
  const dW = W1.map((v, i) => v - W0[i]);
  const times = (x, W) => {
    const out = new Float64Array(n * d);
    for (let r = 0; r < n; r++) for (let p = 0; p < d; p++) for (let j = 0; j < d; j++) out[r * d + j] += x[r * d + p] * W[p * d + j];
    return out;
  };
  const norm = (values) => Math.sqrt(values.reduce((sum, v) => sum + v * v, 0));
  const parts = [times(dx, W0), times(x0, dW), times(dx, dW)];
  const whole = parts[0].map((v, i) => v + parts[1][i] + parts[2][i]);
  const first = norm(times(x0, W0));
  return { encodings: norm(parts[0]) / first, matrix: norm(parts[1]) / first, both: norm(parts[2]) / first, all: norm(whole) / first };
}
