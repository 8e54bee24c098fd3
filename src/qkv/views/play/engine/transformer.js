// @ts-check
// A causal Transformer in the textbook layout, forward and backward by hand, in float64:
//
//   x = W_E[ids] + W_pos;   x += attention(norm1(x));   x += W_out gelu(W_in norm2(x));   logits = norm_f(x) W_U
//
// Names, shapes and layout are those of `qkv train --preset textbook`, so the weights of a run are weights of this. The
// tests compare every gradient with torch's, for every way it can be wired.

import { addATB, begin, multiply, numbers, product, productBT } from "./linear.js";
import { causalSoftmax, causalSoftmaxBackward, crossEntropy, gelu, layerNorm, layerNormBackward } from "./functions.js";

export const WIRING = { positions: true, scale: true, skip: true, shared: false, norms: true, tied: false };

// Every parameter: address, shape, where it lies among all numbers. `shared`: W_K is W_Q, one matrix; `tied`: W_U is W_E.
export function catalogue({ d_vocab: V, d_model: d, d_mlp: f, n_layers, n_ctx }, { positions, shared, norms = true, tied = false }) {
  const rows = [["W_E", V, d], ...(positions ? [["W_pos", n_ctx, d]] : [])];
  for (let layer = 0; layer < n_layers; layer++) {
    const own = [["norm1.gain", d], ["W_Q", d, d], ...(shared ? [] : [["W_K", d, d]]), ["W_V", d, d], ["W_O", d, d],
      ["norm2.gain", d], ["W_in", d, f], ["W_out", f, d]];
    rows.push(...own.map(([name, ...shape]) => [`L${layer}.${name}`, ...shape]));
  }
  rows.push(["norm_f.gain", d], ...(tied ? [] : [["W_U", d, V]]));
  let start = 0;
  return rows.filter(([address]) => norms || !address.endsWith("gain")).map(([address, ...shape]) => {
    const size = shape.reduce((a, b) => a * b, 1);
    const entry = { address, kind: address.replace(/^L\d+\./, ""), shape, start, size };
    start += size;
    return entry;
  });
}

const total = (entries) => entries.reduce((sum, entry) => sum + entry.size, 0);

export class Transformer {
  // sizes { d_vocab, d_model, d_mlp, n_layers, n_heads, n_ctx }; `rows`: the most tokens that come at once.
  // A thread holds one model at a time: a new one takes the memory of the last. `vectors`: WebAssembly where there is any.
  constructor(sizes, wiring, rows, vectors = true) {
    if (sizes.d_model % sizes.n_heads) throw new Error(`d_model ${sizes.d_model} does not divide into ${sizes.n_heads} heads`);
    this.sizes = sizes;
    this.wiring = { ...WIRING, ...wiring };
    this.entries = catalogue(sizes, this.wiring);
    begin(vectors);
    this.weights = numbers(total(this.entries));
    this.gradients = numbers(total(this.entries));
    this.W = this.views(this.weights);
    this.G = this.views(this.gradients);
    this.rows = rows;
    this.scale = this.wiring.scale ? 1 / Math.sqrt(sizes.d_model / sizes.n_heads) : 1;
    this.reserve();
    this.ids = this.targets = new Int32Array(0); // of the last forward, as are:
    this.batch = 0;
    this.length = 0;
    this.count = 0;
  }

  // address -> its part of `numbers`; of a shared pair both names lead to the one matrix.
  views(numbers) {
    const out = Object.fromEntries(this.entries.map((e) => [e.address, numbers.subarray(e.start, e.start + e.size)]));
    for (let layer = 0; layer < this.sizes.n_layers; layer++) out[`L${layer}.W_K`] ??= out[`L${layer}.W_Q`];
    return out;
  }

  reserve() {
    const { d_model: d, d_mlp: f, d_vocab: V, n_heads, n_layers, n_ctx } = this.sizes;
    const n = this.rows;
    const arrays = (sizes) => Object.fromEntries(Object.entries(sizes).map(([name, size]) => [name, numbers(size)]));
    const layer = () => arrays({ x: n * d, unit1: n * d, inverse1: n, h1: n * d, q: n * d, k: n * d, v: n * d, z: n * d,
      pattern: n * n_ctx * n_heads, mid: n * d, unit2: n * d, inverse2: n, h2: n * d, wide: n * f, act: n * f, slope: n * f });
    this.layers = Array.from({ length: n_layers }, layer);
    this.top = arrays({ x: n * d, unit: n * d, inverse: n, h: n * d, out: n * V });
    this.back = arrays({ x: n * d, h: n * d, q: n * d, k: n * d, v: n * d, z: n * d, wide: n * f, pattern: n_ctx * n_ctx,
      around: n * d }); // `around`: what comes past the attention of the first layer
  }

  // ids [batch, length] -> loss and accuracy over the targets (-1: none); everything inside stays readable until the next.
  forward(ids, batch, length, targets) {
    const { d_model: d, d_vocab: V } = this.sizes;
    const rows = batch * length;
    if (rows > this.rows) throw new Error(`${rows} tokens at once; this model was made for ${this.rows}`);
    Object.assign(this, { ids, batch, length, targets });
    this.embed(this.layers[0]?.x ?? this.top.x);
    this.layers.forEach((at, i) => {
      this.attend(at, i);
      this.widen(at, i, this.layers[i + 1]?.x ?? this.top.x);
    });
    const { x, unit, inverse, h, out } = this.top;
    this.norm("norm_f.gain", x, unit, inverse, h);
    if (this.wiring.tied) productBT(out, h, this.W.W_E, rows, V, d);
    else product(out, h, this.W.W_U, rows, V, d);
    const [loss, accuracy, count] = crossEntropy(out, targets, rows, V);
    this.count = count;
    return { loss, accuracy };
  }

  embed(x) {
    const d = this.sizes.d_model;
    const { W_E, W_pos } = this.W;
    for (let r = 0; r < this.batch * this.length; r++) {
      const row = this.ids[r] * d;
      const place = (r % this.length) * d;
      for (let i = 0; i < d; i++) x[r * d + i] = W_E[row + i] + (W_pos ? W_pos[place + i] : 0);
    }
  }

  attend(at, layer) {
    const { d_model: d } = this.sizes;
    const rows = this.batch * this.length;
    const W = (name) => this.W[`L${layer}.${name}`];
    this.norm(`L${layer}.norm1.gain`, at.x, at.unit1, at.inverse1, at.h1);
    for (const [name, into] of [["W_Q", at.q], ["W_K", at.k], ["W_V", at.v]]) product(into, at.h1, W(name), rows, d, d);
    this.eachHead((row, square, n, width) => {
      multiply(at.pattern, square, n, at.q, row, d, 1, at.k, row, 1, d, n, n, width, false);
      causalSoftmax(at.pattern, square, n, this.scale);
      multiply(at.z, row, d, at.pattern, square, n, 1, at.v, row, d, 1, n, width, n, false);
    });
    product(at.mid, at.z, W("W_O"), rows, d, d);
    if (this.wiring.skip) plus(at.mid, at.x, rows * d);
  }

  // A layout without norms hands on what comes.
  norm(gain, x, unit, inverse, out) {
    const [rows, d] = [this.batch * this.length, this.sizes.d_model];
    if (this.wiring.norms) layerNorm(x, this.W[gain], unit, inverse, out, rows, d);
    else out.set(x.subarray(0, rows * d));
  }

  // From back.h, the gradient after a norm, to back.x, that before it; with `add`, to what is there.
  normBackward(gain, unit, inverse, add) {
    const { h, x } = this.back;
    const [rows, d] = [this.batch * this.length, this.sizes.d_model];
    if (this.wiring.norms) layerNormBackward(h, this.W[gain], unit, inverse, x, this.G[gain], rows, d, add);
    else if (add) plus(x, h, rows * d);
    else x.set(h);
  }

  widen(at, layer, post) {
    const { d_model: d, d_mlp: f } = this.sizes;
    const rows = this.batch * this.length;
    const W = (name) => this.W[`L${layer}.${name}`];
    this.norm(`L${layer}.norm2.gain`, at.mid, at.unit2, at.inverse2, at.h2);
    product(at.wide, at.h2, W("W_in"), rows, f, d);
    gelu(at.wide, at.act, at.slope, rows * f);
    product(post, at.act, W("W_out"), rows, d, f);
    if (this.wiring.skip) plus(post, at.mid, rows * d);
  }

  // run(where a head's vectors begin, where its square begins, positions, width of a head) for each text and head
  eachHead(run) {
    const { d_model: d, n_heads } = this.sizes;
    const [n, width] = [this.length, d / n_heads];
    for (let b = 0; b < this.batch; b++) {
      for (let head = 0; head < n_heads; head++) run(b * n * d + head * width, (b * n_heads + head) * n * n, n, width);
    }
  }

  // The gradient of the loss of the last forward with respect to every parameter, into `gradients`.
  backward() {
    const { d_model: d, d_vocab: V } = this.sizes;
    const rows = this.batch * this.length;
    const { unit, inverse, h, out } = this.top;
    this.gradients.fill(0);
    for (let r = 0; r < rows; r++) {
      const target = this.targets[r];
      const at = r * V;
      if (target >= 0) out[at + target] -= 1;
      for (let i = 0; i < V; i++) out[at + i] = target < 0 ? 0 : out[at + i] / this.count;
    }
    if (this.wiring.tied) {
      addATB(this.G.W_E, out, h, V, d, rows);
      product(this.back.h, out, this.W.W_E, rows, d, V);
    } else {
      addATB(this.G.W_U, h, out, d, V, rows);
      productBT(this.back.h, out, this.W.W_U, rows, d, V);
    }
    this.normBackward("norm_f.gain", unit, inverse, false);
    for (let i = this.layers.length - 1; i >= 0; i--) {
      this.widenBackward(this.layers[i], i);
      this.attendBackward(this.layers[i], i);
    }
    this.embedBackward();
  }

  widenBackward(at, layer) {
    const { d_model: d, d_mlp: f } = this.sizes;
    const [rows, { x, h, wide }] = [this.batch * this.length, this.back];
    const [W, G] = [this.W, this.G].map((all) => (name) => all[`L${layer}.${name}`]);
    productBT(wide, x, W("W_out"), rows, f, d);
    addATB(G("W_out"), at.act, x, f, d, rows);
    times(wide, at.slope, rows * f);
    addATB(G("W_in"), at.h2, wide, d, f, rows);
    productBT(h, wide, W("W_in"), rows, d, f);
    this.normBackward(`L${layer}.norm2.gain`, at.unit2, at.inverse2, this.wiring.skip);
  }

  attendBackward(at, layer) {
    const { d_model: d } = this.sizes;
    const [rows, back] = [this.batch * this.length, this.back];
    const [W, G] = [this.W, this.G].map((all) => (name) => all[`L${layer}.${name}`]);
    if (layer === 0) back.around.set(back.x);
    productBT(back.z, back.x, W("W_O"), rows, d, d);
    addATB(G("W_O"), at.z, back.x, d, d, rows);
    this.eachHead((row, square, n, width) => {
      multiply(back.pattern, 0, n, back.z, row, d, 1, at.v, row, 1, d, n, n, width, false);
      multiply(back.v, row, d, at.pattern, square, 1, n, back.z, row, d, 1, n, width, n, false);
      causalSoftmaxBackward(back.pattern, at.pattern, square, n, this.scale);
      multiply(back.q, row, d, back.pattern, 0, n, 1, at.k, row, d, 1, n, width, n, false);
      multiply(back.k, row, d, back.pattern, 0, 1, n, at.q, row, d, 1, n, width, n, false);
    });
    for (const [name, grad] of [["W_Q", back.q], ["W_K", back.k], ["W_V", back.v]]) {
      addATB(G(name), at.h1, grad, d, d, rows);
      productBT(back.h, grad, W(name), rows, d, d, name !== "W_Q");
    }
    this.normBackward(`L${layer}.norm1.gain`, at.unit1, at.inverse1, this.wiring.skip);
  }

  embedBackward() {
    const d = this.sizes.d_model;
    const { W_E, W_pos } = this.G;
    for (let r = 0; r < this.batch * this.length; r++) {
      const row = this.ids[r] * d;
      const place = (r % this.length) * d;
      for (let i = 0; i < d; i++) {
        W_E[row + i] += this.back.x[r * d + i];
        if (W_pos) W_pos[place + i] += this.back.x[r * d + i];
      }
    }
  }
}

function plus(into, from, n) {
  for (let i = 0; i < n; i++) into[i] += from[i];
}

function times(into, by, n) {
  for (let i = 0; i < n; i++) into[i] *= by[i];
}
