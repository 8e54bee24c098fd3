// @ts-check
// A short tour for a first visit: what to look at, in which order, each a way to its section.

import { h, wayTo } from "./dom.js";

// [section, what to see there, what to do]
const STOPS = [
  ["answers", "What this run shows", "Common questions, each with its answer, its numbers and a comparison."],
  ["which-q", "Three things called Q", "x is the input, W_Q the learned matrix, q the output. The page uses these names throughout."],
  ["grid", "Every matrix", "Press play at the bottom and watch which matrices move."],
  ["attention", "Where the heads look", "Choose a head, then point at its picture to see what attends to what."],
  ["forward", "One sentence, all the way through", "Follow one token from its row of W_E to the prediction, and the gradient back."],
  ["words", "What became of the words", "Drag the slider: tokens with similar use move together."],
];

export default function render({ model, el }) {
  const there = STOPS.filter(([id]) => document.getElementById(id));
  if (there.length < 3) return;
  el.append(h("details.tour", null, h("summary", null, `First visit? A tour in ${there.length} stops`),
    h("ol", null, there.map(([id, what, how]) => h("li", null, wayTo(model, id, what), h("span", null, how))))));
}
