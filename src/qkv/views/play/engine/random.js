// @ts-check
// Randomness by name, not by order: a stream is a pure function of the words that name it, so two arms of a race draw the
// same numbers for the same matrix and the same batch, whatever else differs. Not the streams of qkv in Python.
// Hash: cyrb128 (bryc, public domain); generator: sfc32 (Doty-Humphrey, PractRand, public domain).

function hash(text) {
  let [a, b, c, d] = [1779033703, 3144134277, 1013904242, 2773480762];
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    a = b ^ Math.imul(a ^ code, 597399067);
    b = c ^ Math.imul(b ^ code, 2869860233);
    c = d ^ Math.imul(c ^ code, 951274213);
    d = a ^ Math.imul(d ^ code, 2716044179);
  }
  a = Math.imul(c ^ (a >>> 18), 597399067);
  b = Math.imul(d ^ (b >>> 22), 2869860233);
  c = Math.imul(a ^ (c >>> 17), 951274213);
  d = Math.imul(b ^ (d >>> 19), 2716044179);
  return [a ^ b ^ c ^ d, b ^ a, c ^ a, d ^ a];
}

// -> a function that gives uniform numbers in [0, 1), 32 bits each.
export function stream(...names) {
  let [a, b, c, d] = hash(names.join("\u001f"));
  const next = () => {
    const t = (((a + b) | 0) + d) | 0;
    d = (d + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (((c << 21) | (c >>> 11)) + t) | 0;
    return (t >>> 0) / 4294967296;
  };
  for (let i = 0; i < 12; i++) next();
  return next;
}

export const below = (uniform, n) => Math.floor(uniform() * n);

// Standard normal numbers, Box and Muller 1958.
export function normals(values, uniform, std) {
  for (let i = 0; i < values.length; i++) {
    values[i] = std * Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  }
}

// Fisher-Yates on a copy.
export function shuffled(items, uniform) {
  const out = [...items];
  for (let i = out.length - 1; i > 0; i--) {
    const j = below(uniform, i + 1);
    [out[i], out[j]] = [out[j], out[i]];
  }
  return out;
}
