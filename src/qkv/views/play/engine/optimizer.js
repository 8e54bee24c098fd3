// @ts-check
// Plain rules over stretches of numbers. A held (frozen) matrix is passed over: no update, no moment, bit-identical.

const [BETA1, BETA2, EPS] = [0.9, 0.999, 1e-8];

// W <- W - lr g
class Sgd {
  step(weights, gradients, entries, rate) {
    for (const { start, size } of entries) {
      for (let i = start; i < start + size; i++) weights[i] -= rate * gradients[i];
    }
  }
}

// Kingma and Ba 2015, arXiv 1412.6980, algorithm 1.
class Adam {
  constructor(n) {
    this.first = new Float64Array(n);
    this.second = new Float64Array(n);
    this.steps = 0;
  }

  step(weights, gradients, entries, rate) {
    this.steps++;
    const pace = rate / (1 - BETA1 ** this.steps);
    const root = Math.sqrt(1 - BETA2 ** this.steps);
    const { first, second } = this;
    for (const { start, size } of entries) {
      for (let i = start; i < start + size; i++) {
        const g = gradients[i];
        first[i] = BETA1 * first[i] + (1 - BETA1) * g;
        second[i] = BETA2 * second[i] + (1 - BETA2) * g * g;
        weights[i] -= (pace * first[i]) / (Math.sqrt(second[i]) / root + EPS);
      }
    }
  }
}

export const OPTIMIZERS = { adam: (n) => new Adam(n), sgd: () => new Sgd() };
