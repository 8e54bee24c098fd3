// @ts-check
// Sums along both sides of a pattern: what each key receives in all, and the entropy of each query's row.

import { add, clear } from "./dom.js";
import { number } from "./format.js";
import { raster } from "./raster.js";
import { bar, linear } from "./scale.js";
import { theme } from "./theme.js";

// sums: { received, entropy, rounded }; `key(i)` and `query(i)` name a token, `seenBy(i)` and `sees(i)` count what the mask leaves;
// `say` is told in words, `rest` when the pointer leaves. Fills `el`.
export function margins(el, off, { sums, key, query, seenBy, sees, say, rest }) {
  const strip = (label, words, array, top, told) => {
    const part = raster(off, { label, rows: 1, columns: array.length, values: array, scale: linear(top), tell: (_, i) => say(told(i)), leave: rest });
    return [part.el, bar(linear(top), theme(el), words)];
  };
  const { received, entropy } = sums;
  const roughly = sums.rounded ? ", added up from shares of two digits" : "";
  const most = Math.max(2, ...Array.from(entropy, (_, i) => sees(i)));
  add(clear(el), [strip("attention received, by key", `attention that each token receives in all${roughly}`, received, Math.max(...received), (i) => `${key(i)} receives ${number(received[i])} in all, from ${seenBy(i)} tokens that may see it`),
    strip("entropy of each row, by query", `entropy of each token's row, nats${roughly}`, entropy, Math.log(most), (i) => `${query(i)}: entropy ${number(entropy[i])} nats; even attention would have ${number(Math.log(sees(i)))}`)]);
}
