// @ts-check
// Two arms, each in a worker made from this page's own text, kept at the same step: a stretch of steps is asked of both,
// and the next stretch only when both have answered.

const ARMS = ["a", "b"];
const STRETCH_MILLISECONDS = 120;
const LONGEST_STRETCH = 25;

class Thread {
  constructor(address) {
    this.worker = new Worker(address);
    this.asked = new Map();
    this.last = 0;
    this.worker.onmessage = ({ data }) => {
      const { done, failed } = this.asked.get(data.id);
      this.asked.delete(data.id);
      if (data.error) failed(new Error(data.error));
      else done(data);
    };
    this.worker.onerror = (event) => {
      for (const { failed } of this.asked.values()) failed(new Error(event.message));
      this.asked.clear();
    };
  }

  ask(message) {
    const id = ++this.last;
    return new Promise((done, failed) => {
      this.asked.set(id, { done, failed });
      this.worker.postMessage({ id, ...message });
    });
  }
}

export class Race {
  constructor(source) {
    const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    this.threads = Object.fromEntries(ARMS.map((arm) => [arm, new Thread(address)]));
    this.milliseconds = 60; // a step, before one was measured
  }

  both(message) {
    return Promise.all(ARMS.map((arm) => this.threads[arm].ask(message(arm)))).then(([a, b]) => ({ a, b }));
  }

  make(state, given) {
    const { task, text, seed, layers } = state;
    return this.both((arm) => ({ make: { shared: { task, text, seed, layers }, arm: state[arm], given } }));
  }

  // `run` steps on both arms, then a look
  async advance(run, sentence, writes) {
    const began = performance.now();
    const answers = await this.both(() => ({ run, look: true, sentence, writes }));
    if (run > 0) this.milliseconds = 0.7 * this.milliseconds + 0.3 * ((performance.now() - began) / run);
    return answers;
  }

  stretch() {
    return Math.max(1, Math.min(LONGEST_STRETCH, Math.round(STRETCH_MILLISECONDS / this.milliseconds)));
  }
}
