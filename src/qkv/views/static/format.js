// @ts-check
// Numbers and tokens as people read them. A value that is missing is a dash, never a zero.

export const DASH = "–";
const MINUS = "−";

const present = (value) => value !== null && value !== undefined && Number.isFinite(value);

// `digits` significant digits at most; a payload says how many its numbers hold.
export function number(value, digits = 3) {
  if (!present(value)) return DASH;
  if (value === 0) return "0";
  const size = Math.abs(value);
  let text;
  if (size >= 1e6 || size < 1e-3) text = value.toExponential(Math.max(0, digits - 1)).replace("e+", "e");
  else if (size >= 10 ** digits) text = Math.round(value).toLocaleString("en-US");
  else text = String(Number(value.toPrecision(digits)));
  return text.replaceAll("-", MINUS);
}

export function fixed(value, places = 2) {
  if (Math.abs(value) >= 1e6) return number(value);
  return present(value) ? value.toFixed(places).replace("-", MINUS) : DASH;
}

export function whole(value) {
  return present(value) ? Math.round(value).toLocaleString("en-US").replace("-", MINUS) : DASH;
}

// Numbers along an axis: round ones, that differ by a digit which may be the fourth; steps are whole, or not said.
export const tick = (value) => number(value, Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? 2 : 6);
export const tickOfSteps = (value) => (Number.isInteger(value) ? whole(value) : "");

export function percent(share) {
  if (!present(share)) return DASH;
  return share > 0 && share < 0.01 ? "under 1%" : `${Math.round(share * 100)}%`;
}

// A size relative to another, to be followed by what that is: `38% of`, `4.4 times`.
export const relative = (value) => (value < 0.995 ? `${percent(value)} of` : `${number(value, 2)} times`);

export function duration(seconds) {
  if (!present(seconds)) return DASH;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const total = Math.round(seconds);
  if (total < 60) return `${total} s`;
  const [hours, minutes, rest] = [Math.floor(total / 3600), Math.floor(total / 60) % 60, total % 60];
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${rest} s`;
}

export const large = (value) => !present(value) ? DASH
  : value >= 1e9 ? `${number(value / 1e9)} billion` : value >= 1e6 ? `${number(value / 1e6)} million` : whole(value);

const SEEN = new Map([[" ", "␣"], ["\n", "⏎"], ["\t", "⇥"], ["\r", "␍"], ["", "∅"]]);
// Characters without a shape of their own, or that would turn the text around them: shown by number.
const UNSEEN = /[\u0000-\u001f\u007f-\u00a0\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\uffff]/g;
const WRITTEN = "\n\r\t\u00a0\u200c\u200d\ufffd"; // those that a text is written with: its space, joiners of its letters, and the mark of a lost one

const shown = (text, kept) => text.replace(UNSEEN, (c) => (kept.includes(c) ? c : `‹${c.codePointAt(0).toString(16).padStart(2, "0")}›`));

// A running text in which nothing is hidden and nothing turns what stands beside it.
export const visible = (text) => shown(text, WRITTEN);

// A token with its white space made visible.
export const token = (text) => SEEN.get(text) ?? shown(text.replace(/^ /, "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥"), "");

export const shape = (sizes) => sizes.map(whole).join(" × ");

export const plural = (n, word) => `${whole(n)} ${word}${n === 1 ? "" : "s"}`;
