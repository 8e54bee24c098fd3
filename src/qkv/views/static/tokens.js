// @ts-check
// A text as buttons, one a token, shaded by what a head reads or by who reads it.

import { h } from "./dom.js";
import { token } from "./format.js";

/** @import { Scale } from "./scale.js" */
/** @import { Colours } from "./theme.js" */

/**
 * Token `i` of `n`. `look(i, passing)` is told of the pointer and of the arrow keys, which go on to the button that `at(i)` gives;
 * `leave` when the pointer goes.
 * @param {string} name @param {number} i @param {number} n
 * @param {{ look: (i: number, passing?: boolean) => void, at: (i: number) => HTMLElement | undefined, leave?: () => void }} on
 */
export function word(name, i, n, { look, at, leave }) {
  const arrow = (event) => {
    const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: n - 1 }[event.key];
    if (to === undefined || to < 0 || to >= n) return;
    event.preventDefault();
    look(to);
    at(to)?.focus();
  };
  return h("button.word", { type: "button", tabindex: "-1", onclick: () => look(i), onpointerenter: (event) => event.pointerType === "mouse" && look(i, true),
    onpointerleave: leave, onkeydown: arrow }, token(name));
}

/** @param {HTMLElement} button @param {number} position  on the colours @param {Colours} colours @param {string} [otherwise]  where there is none */
export function shade(button, position, colours, otherwise = "") {
  button.style.background = position > 0.02 ? colours.sequential(position) : otherwise;
  button.style.color = position > 0.02 ? colours.on(position) : "";
}

/** The likest `most` of what is above `least`, as `name share, name share`. */
export const leadingOf = (row, { most = 3, least = 0.005, say, among = (_) => true }) =>
  [...row.keys()].filter((j) => among(j) && row[j] > least).sort((a, b) => row[b] - row[a]).slice(0, most).map(say).join(", ");
