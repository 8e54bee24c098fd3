// @ts-check
// The tokens of a text: their names, with those that spell one character together, and the text as buttons, one a token,
// shaded by what a head reads or by who reads it.

import { add, clear, h, remembered } from "./dom.js";
import { token } from "./format.js";

/** @import { Colours } from "./theme.js" */

const PART = /^<0x[0-9A-F]{2}(?:\+0x[0-9A-F]{2})*>$/; // a token that is part of a character, as `Tokenizer.token` writes it
const STRIP = 128; // tokens of a long text that stand in a row at once
const [encoder, decoder] = [new TextEncoder(), new TextDecoder("utf-8", { ignoreBOM: true })];

const bytesOf = (name) => (PART.test(name) ? Uint8Array.from(name.match(/[0-9A-F]{2}(?=[+>])/g), (digits) => parseInt(digits, 16)) : encoder.encode(name));

/**
 * The characters, as a reader sees them, that take several tokens: `to` is behind the last of them. None where the tokens spell
 * no text.
 * @param {string[]} tokens @returns {{ from: number, to: number, text: string }[]}
 */
export function characters(tokens) {
  const parts = tokens.map(bytesOf);
  const all = Uint8Array.from(parts.flatMap((part) => [...part]));
  const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(all, { stream: true }); // without a character that was cut off
  const whole = encoder.encode(text);
  if (whole.some((byte, i) => byte !== all[i])) return [];
  const ends = new Set();
  let [from, start, at] = [0, 0, 0];
  const segments = globalThis.Intl?.Segmenter ? [...new Intl.Segmenter().segment(text)].map((one) => one.segment) : [...text];
  for (const segment of segments) ends.add((at += encoder.encode(segment).length));
  at = 0;
  const found = [];
  parts.forEach((part, i) => {
    at += part.length;
    if (!ends.has(at)) return;
    if (i > from) found.push({ from, to: i + 1, text: decoder.decode(whole.subarray(start, at)) });
    [from, start] = [i + 1, at];
  });
  return found;
}

/** Each token as a person reads it: part of a character by the character, `😀 2/4`. @type {(tokens: string[]) => string[]} */
export const namesOf = remembered((tokens) => {
  const names = tokens.map(token);
  for (const { from, to, text } of characters(tokens)) for (let i = from; i < to; i++) names[i] = `${token(text)} ${i - from + 1}/${to - from}`;
  return names;
});

// Whether its first letter belongs to a script that is written from right to left.
const leftwards = (text) => /^[^\p{L}]*[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/u.test(text);

/** A name in a sentence that it may not turn around. @param {string} name */
export const isolated = (name) => (leftwards(name) ? `\u2068${name}\u2069` : name);

/**
 * Token `i` of `n`. `look(i, passing)` hears of the pointer and of the arrow keys, which go on to the button that `at(i)` gives;
 * `leave` when the pointer goes.
 * @param {string} name @param {number} i @param {number} n
 * @param {{ look: (i: number, passing?: boolean) => void, at: (i: number) => HTMLElement | undefined, leave?: () => void }} on
 */
export function word(name, i, n, { look, at, leave }) {
  const arrow = (event) => {
    const way = event.target.closest("[dir=rtl]") ? -1 : 1;
    const to = { ArrowLeft: i - way, ArrowRight: i + way, Home: 0, End: n - 1 }[event.key];
    if (to === undefined || to < 0 || to >= n) return;
    event.preventDefault();
    look(to);
    at(to)?.focus();
  };
  return h("button.word", { type: "button", tabindex: "-1", onclick: () => look(i), onpointerenter: (event) => event.pointerType === "mouse" && look(i, true),
    onpointerleave: leave, onkeydown: arrow }, name);
}

/**
 * The text itself around the token that is looked at, those of one character in one frame.
 * @param {string[]} tokens @param {(i: number, passing?: boolean) => void} look @param {() => void} [leave]
 */
export function strip(tokens, look, leave) {
  const n = tokens.length;
  const [names, groups] = [namesOf(tokens), characters(tokens)];
  const el = h("div.words", { dir: leftwards(names.join("")) ? "rtl" : null });
  let [from, buttons] = [-1, []];
  return {
    el,
    show(around) {
      const start = n <= STRIP * 2 ? 0 : Math.max(0, Math.min(n - STRIP, around - STRIP / 2));
      if (start === from) return;
      from = start;
      const to = n <= STRIP * 2 ? n : start + STRIP;
      buttons = names.slice(start, to).map((name, j) => word(name, start + j, n, { look, leave, at: (i) => buttons[i - from] }));
      clear(el);
      for (let i = start; i < to;) {
        const group = groups.find((one) => one.from <= i && i < one.to);
        const end = Math.min(to, group?.to ?? i + 1);
        const shown = buttons.slice(i - start, end - start);
        if (group) shown.forEach((button, j) => {
          button.setAttribute("aria-label", `${names[i + j]}, ${tokens[i + j]}`);
          button.textContent = i + j === group.from ? token(group.text) : "·";
        });
        add(el, [group ? h("span.character", { title: `${token(group.text)} is ${group.to - group.from} tokens` }, shown) : shown]);
        i = end;
      }
    },
    each: (run) => buttons.forEach((button, b) => run(button, from + b)),
  };
}

/** @param {HTMLElement} button @param {number} position  on the colours @param {Colours} colours @param {string} [otherwise]  where there is none */
export function shade(button, position, colours, otherwise = "") {
  button.style.background = position > 0.02 ? colours.sequential(position) : otherwise;
  button.style.color = position > 0.02 ? colours.on(position) : "";
}

/** The likest `most` of what is above `least`, as `name share, name share`. */
export const leadingOf = (row, { most = 3, least = 0.005, say, among = (_) => true }) =>
  [...row.keys()].filter((j) => among(j) && row[j] > least).sort((a, b) => row[b] - row[a]).slice(0, most).map(say).join(", ");
