// @ts-check
// What the words of the page mean: the first of each in a section is marked, and says its meaning to a pointer, to the keyboard
// and to a screen reader.

import { atMostEvery, h } from "./dom.js";

/** @type {Record<string, string>} */
export const MEANINGS = {
  "activation patching": "Copy one activation from a run of the model on another text and recompute the rest: how far the answer changes shows what that activation carries.",
  "attention head": "One of several attentions that run side by side in a layer, each with its own W_Q, W_K, W_V and W_O.",
  baseline: "A loss that needs no model, measured on the same data: what counting alone achieves.",
  "bits per byte": "The loss in bits, divided by the bytes of the text: the same scale for every tokenizer.",
  "confidence interval": "The range that contains the true value in 95 of 100 repetitions.",
  "contextual vectors": "What a token's vector has become after a layer: it depends on the other tokens of the text.",
  cosine: "How far two vectors point the same way: 1 the same direction, 0 at right angles, −1 opposite.",
  "direct logit attribution": "Split the logits into what each head, MLP and bias wrote into the residual stream.",
  drift: "The distance of a matrix from its initial value, relative to its initial norm.",
  entropy: "How spread out a distribution is: −Σ p ln p, in nats; 0 if all of it is in one place.",
  "first order": "What the gradient alone predicts for a small step: gradient times step.",
  gradient: "How the loss changes with each weight or activation: its derivative.",
  "induction head": "A head that attends to the token after an earlier copy of the current one, and so continues repetitions.",
  initialization: "The values that the weights had before the first update.",
  "log-odds": "ln p(a) − ln p(b): by how much, in nats, one answer is preferred to another.",
  logits: "One number per token of the vocabulary; their softmax is the predicted distribution.",
  "n-gram": "A model that counts which token follows the last n − 1 tokens.",
  nats: "The unit of the loss, −ln p: 0.69 nats is one bit.",
  norm: "The length of a vector or matrix: the square root of the sum of its squares.",
  pattern: "The attention weights: the softmax of the scores. Each row sums to 1.",
  perplexity: "e to the loss: among how many equally likely tokens the model still chooses.",
  "random-label control": "The same training with labels drawn uniformly at every step: what moves as much there has not learned anything from the data.",
  "rank correlation": "How far two orders agree: 1 the same order, 0 unrelated, −1 reversed.",
  "residual stream": "The vector of a token that runs through all layers; each attention and MLP adds to it.",
  scores: "q · k, scaled: how well a query fits a key, before the softmax.",
  seed: "The number that random initialization and the order of the data come from.",
  "singular values": "How much a matrix stretches each of its directions, largest first.",
  softmax: "Turns numbers into shares that sum to 1: each is exp of the number, divided by the sum of all.",
  spectrum: "The singular values of a matrix, largest first.",
  step: "One update of the weights by the optimizer, from one batch.",
  temperature: "Divides the logits before the softmax: below 1 sharpens the distribution, above 1 flattens it, 0 always takes the likeliest token.",
  token: "A piece of text that the model reads as one symbol: a word, a part of one, a character or a byte.",
  "top-k": "Only the k likeliest tokens can be drawn.",
  "top-p": "Only the likeliest tokens that together hold a share p of the probability can be drawn.",
  "validation loss": "The mean −ln p of the right answer on text that the model was not trained on.",
  vocabulary: "All the tokens that the model knows.",
};

const PROSE = "p, figcaption, dt, dd, label, .figure-title";
const NOT = "dfn, button, a, code, pre, svg, summary, select, textarea, output, .readout, .live, .sample, .chip, .word, .predictions, .facts, .stage-formula";
const found = new RegExp(`(?<![\\w-])(?:${Object.keys(MEANINGS).sort((a, b) => b.length - a.length).join("|")})(?![\\w-])`, "i");

function mark(node, known) {
  const match = node.data.match(found);
  if (!match) return;
  const word = match[0].toLowerCase();
  const rest = node.splitText(match.index).splitText(match[0].length);
  if (!known.has(word)) {
    known.add(word);
    rest.previousSibling.replaceWith(h("dfn", { tabindex: "0", "data-word": word, "aria-description": MEANINGS[word] }, match[0]));
  }
  mark(rest, known);
}

// Marks the words of `el` that are not marked yet.
function define(el) {
  const known = new Set([...el.querySelectorAll("dfn")].map((one) => one.dataset.word));
  const walker = document.createTreeWalker(el, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    if (parent.closest(PROSE) && !parent.closest(NOT)) nodes.push(walker.currentNode);
  }
  nodes.forEach((node) => mark(node, known));
}

// One box that says the meaning of the word under the pointer or the focus.
function box() {
  const el = h("div.meaning", { role: "tooltip", hidden: true });
  const show = ({ target }) => {
    const word = target?.closest?.("dfn");
    if (!word) return void (el.hidden = true);
    el.textContent = MEANINGS[word.dataset.word];
    el.hidden = false;
    const [at, own] = [word.getBoundingClientRect(), el.getBoundingClientRect()];
    el.style.left = `${Math.max(8, Math.min(at.left, document.documentElement.clientWidth - own.width - 8))}px`;
    el.style.top = `${at.bottom + own.height + 8 < innerHeight ? at.bottom + 4 : at.top - own.height - 4}px`;
  };
  for (const name of ["pointerover", "focusin"]) document.addEventListener(name, show);
  document.addEventListener("keydown", ({ key }) => key === "Escape" && (el.hidden = true));
  document.addEventListener("scroll", () => !el.hidden && show({ target: document.activeElement }), { passive: true });
  document.body.append(el);
}

const BLOCKS = "p, figure, figcaption, dl, article, div";

/** Defines the words in each of `sections`, also in what is drawn there later. @param {HTMLElement[]} sections */
export function glossary(sections) {
  box();
  for (const section of sections) {
    const again = atMostEvery(500, () => define(section));
    new MutationObserver((changes) => changes.some(({ addedNodes }) => [...addedNodes].some((node) => node instanceof Element && node.matches(BLOCKS))) && again())
      .observe(section, { childList: true, subtree: true });
    again();
  }
}
