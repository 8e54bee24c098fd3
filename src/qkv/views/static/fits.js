// @ts-check
// Which runs the playground can go on training: small ones in its own layout. One rule, for the section of a report and for files
// that are loaded in the playground; `why` says in a sentence what does not fit, "" where all does.

import { whole } from "./format.js";

export const LARGEST = 250000; // parameters: beyond, a step in a browser takes too long to watch
export const SHORTEST = 32; // positions: of the windows it trains on

export const FIXED = { kind: "CausalLM", mixer: "attention", norm: "layer", norm_eps: 1e-5, norm_place: "pre", norm_e: false, qk_norm: false, mlp: "gelu", bias: false, attention_bias: "same", head_bias: false, head_transform: false, tied: false, parallel: false, embed_scale: false };

// The changes of `qkv train` that make each layer's keys its queries, one matrix.
export const sharing = (n_layers) => Array.from({ length: n_layers }, (_, i) => `L${i}.W_K=share(L${i}.W_Q)`);

// Whether a run's changes, as one text, are these; null where other matrices are shared, or some layers' alone.
export function sharesKeys({ changes = "", n_layers }) {
  const made = [...changes.matchAll(/([^\s,"'=]+)\s*=\s*share\(\s*([^\s)]+)\s*\)/g)].map(([, to, from]) => `${to}=share(${from})`);
  if (!made.length) return false;
  return [...new Set(made)].sort().join() === sharing(n_layers).sort().join() ? true : null;
}

const POSITIONS = ["learned", "none"];
const TRY = "qkv train my.txt --preset textbook --tokenizer char --set d_model=32,n_layers=2,n_heads=4,n_ctx=64";

// settings: { kind, layout's keys, sizes' keys, changes }; tokens: the vocabulary, characters and special tokens, or null for another kind.
export function why(settings, tokens, parameters) {
  if (parameters > LARGEST) return `This model has ${whole(parameters)} parameters; the playground trains up to ${whole(LARGEST)} in a browser. A small one to try: ${TRY}`;
  const other = Object.keys(FIXED).filter((key) => (settings[key] ?? FIXED[key]) !== FIXED[key]).map((key) => `${key} is ${settings[key]}, not ${FIXED[key]}`);
  if (!POSITIONS.includes(settings.positions)) other.push(`positions are ${settings.positions}, not learned or none`);
  if (settings.n_kv_heads !== settings.n_heads) other.push("its heads share keys and values");
  if (settings.d_model !== settings.n_heads * settings.d_head) other.push("d_model is not n_heads × d_head");
  if (sharesKeys(settings) === null) other.push("it shares other matrices than W_K = W_Q in every layer");
  if (other.length) return `This model has another layout than the playground's: ${other.join("; ")}. One that fits: ${TRY}`;
  if (!tokens) return `This model reads another kind of token; the playground reads characters. One that fits: ${TRY}`;
  if (settings.n_ctx < SHORTEST) return `This model has a context of ${whole(settings.n_ctx)}; the playground trains on windows of ${SHORTEST}.`;
  return "";
}
