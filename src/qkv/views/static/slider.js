// @ts-check
// One step slider with play. It moves every view of the page that has a step.

import { h, together } from "./dom.js";
import { whole } from "./format.js";
import { stepIndex } from "./decode.js";
import { watch } from "./model.js";

const PLAY_MILLISECONDS = 6000; // from first to last
const FRAME_AT_LEAST = 60;

export default function render({ model, el }) {
  let steps = model.get("steps") || [];
  if (steps.length < 2) return () => {};
  const off = together();
  let last = steps.length - 1;
  const index = () => stepIndex(steps, model.get("step"));
  const output = h("output.step-now");
  const range = h("input", {
    type: "range", min: 0, max: last, step: 1, "aria-label": "step of the training",
    oninput: () => {
      const chosen = steps[Number(range.value)]; // before stop() writes the old step back
      stop();
      model.set("step", chosen);
    },
  });
  const play = h("button.play", { type: "button", onclick: () => (timer ? stop() : start()) });
  let timer = 0;

  function start() {
    if (index() >= last) model.set("step", steps[0]);
    timer = setInterval(() => {
      const next = index() + 1;
      if (next > last) stop();
      else model.set("step", steps[next]);
    }, Math.max(FRAME_AT_LEAST, PLAY_MILLISECONDS / last));
    show();
  }
  function stop() {
    clearInterval(timer);
    timer = 0;
    show();
  }
  function show() {
    range.value = String(index());
    range.setAttribute("aria-valuetext", `step ${whole(model.get("step"))}`);
    play.textContent = timer ? "❚❚" : "►";
    play.setAttribute("aria-label", timer ? "pause" : "play the training");
    output.textContent = `step ${whole(model.get("step"))} of ${whole(steps[last])}`;
  }
  el.append(h("div.slider", null, play, range, output));
  off.add(watch(model, "steps", () => {
    steps = model.get("steps");
    last = steps.length - 1;
    range.max = String(last);
    show();
  }));
  off.add(watch(model, "step", show));
  off.add(() => clearInterval(timer));
  show();
  return off;
}
