// @ts-check
// A short tour for a first visit: what to look at, in which order, each a way to its section.

import { h, wayTo } from "./dom.js";

// [section, what to see there, what to do]
const STOPS = [
  ["answers", "What this run says of itself", "The questions that everyone asks, each with its numbers and what to compare them with."],
  ["which-q", "Three things called Q", "x comes in, W_Q is learned, q comes out. The rest of the page keeps to these names."],
  ["grid", "Every matrix", "Press play at the bottom: watch which matrices leave their start."],
  ["attention", "Where the heads look", "Choose a head, then point at its picture: what is read there, and by what?"],
  ["forward", "One sentence, all the way through", "Follow one token from its row of W_E to the prediction, and the gradient back."],
  ["words", "What became of the words", "Drag the slider: tokens that are used alike come to lie together."],
];

function render({ model, el }) {
  const there = STOPS.filter(([id]) => document.getElementById(id));
  if (there.length < 3) return;
  el.append(h("details.tour", null, h("summary", null, `First visit? A tour in ${there.length} stops`),
    h("ol", null, there.map(([id, what, how]) => h("li", null, wayTo(model, id, what), h("span", null, how))))));
}

export default { render };
