// @ts-check
// The tiles of a matrix product as WebAssembly with 128-bit vectors, where the browser has them; assembled here from the
// instructions of the core specification (version 2.0, with fixed-width SIMD), so there is nothing to download or build.
// Each sum runs in the same order as in JavaScript, without fused steps, so the numbers are the same to the last bit.

const PAGES = 640; // of 64 KiB: 40 MiB hold two layers, their activations and gradients
const [I32, V128] = [0x7f, 0x7b];

function leb(value) { // signed LEB128, valid where unsigned is asked for as long as it ends with a clear sign bit
  const bytes = [];
  for (;;) {
    const byte = value & 0x7f;
    value >>= 7;
    if ((value === 0 && !(byte & 0x40)) || (value === -1 && byte & 0x40)) return [...bytes, byte];
    bytes.push(byte | 0x80);
  }
}

const count = (value) => (value < 128 ? [value] : [(value & 127) | 128, value >> 7]);
const section = (id, ...body) => [id, ...count(body.flat(9).length), ...body.flat(9)];
const text = (word) => [word.length, ...new TextEncoder().encode(word)];

const get = (i) => [0x20, i];
const set = (i) => [0x21, i];
const constant = (value) => [0x41, ...leb(value)];
const [plus, minus, times, less] = [0x6a, 0x6b, 0x6c, 0x49].map((code) => (a, b) => [a, b, code]);
const load = (at, offset = 0) => [at, 0xfd, 0x00, 3, offset];
const splat = (at) => [at, 0xfd, 0x0a, 3, 0];
const store = (at, value, offset = 0) => [at, value, 0xfd, 0x0b, 3, offset];
const add2 = (a, b) => [a, b, 0xfd, 0xf0, 1];
const mul2 = (a, b) => [a, b, 0xfd, 0xf2, 1];
const zero = [0xfd, 0x0c, ...Array(16).fill(0)];
const loop = (...body) => [0x03, 0x40, ...body, 0x0b];
const again = (condition) => [condition, 0x0d, 0];
const when = (condition, yes, no) => [condition, 0x04, 0x40, yes, 0x05, no, 0x0b];
const grow = (i, by) => [plus(get(i), by), set(i)];

// (c, ci, a, ai, ap, b, bp, m, n, k, add): addresses and strides in bytes, m and n multiples of 4, k at least 1.
function kernel() {
  const [c, ci, a, ai, ap, b, bp, m, n, k, add, j, p, y, at] = Array(15).keys();
  const x = [15, 16, 17, 18];
  const sums = [[19, 20], [21, 22], [23, 24], [25, 26]];
  const [w0, w1, u] = [27, 28, 29];
  const row = (from, stride, r) => plus(from, times(stride, constant(r)));
  const each = (run) => sums.map((pair, r) => run(pair, r));
  const inner = loop(
    load(get(y)), set(w0), load(get(y), 16), set(w1),
    each(([s, t], r) => [splat(get(x[r])), set(u), add2(get(s), mul2(get(u), get(w0))), set(s), add2(get(t), mul2(get(u), get(w1))), set(t), grow(x[r], get(ap))]),
    grow(y, get(bp)), minus(get(p), constant(1)), set(p), again(get(p)));
  const tile = loop(
    plus(get(c), times(get(j), constant(8))), set(at), plus(get(b), times(get(j), constant(8))), set(y), get(k), set(p),
    each((_, r) => [row(get(a), get(ai), r), set(x[r])]),
    when(get(add), each(([s, t], r) => [load(row(get(at), get(ci), r)), set(s), load(row(get(at), get(ci), r), 16), set(t)]),
      each(([s, t]) => [zero, set(s), zero, set(t)])),
    inner, each(([s, t], r) => [store(row(get(at), get(ci), r), get(s)), store(row(get(at), get(ci), r), get(t), 16)]),
    grow(j, constant(4)), again(less(get(j), get(n))));
  const rows = loop(constant(0), set(j), tile, grow(a, times(get(ai), constant(4))), grow(c, times(get(ci), constant(4))),
    minus(get(m), constant(4)), set(m), again(get(m)));
  return [2, 8, I32, 11, V128, rows, 0x0b].flat(99);
}

function assembled() {
  const body = kernel();
  return Uint8Array.from([0, 0x61, 0x73, 0x6d, 1, 0, 0, 0,
    ...section(1, 1, 0x60, 11, Array(11).fill(I32), 0), ...section(2, 1, text("m"), text("m"), 2, 0, 1), ...section(3, 1, 0),
    ...section(7, 1, text("f"), 0, 0), ...section(10, 1, count(body.length), body)]);
}

// -> { tiles, buffer }, or null where there is no WebAssembly with vectors
export function simd() {
  try {
    const memory = new WebAssembly.Memory({ initial: PAGES });
    const module = new WebAssembly.Module(assembled());
    return { tiles: new WebAssembly.Instance(module, { m: { m: memory } }).exports.f, buffer: memory.buffer };
  } catch {
    return null;
  }
}
