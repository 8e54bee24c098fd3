// @ts-check
// Packed arrays (views/report/packed.py: Packed) back to numbers.

import { d3 } from "./vendor.js";
import { remembered } from "./dom.js";

const KINDS = { float32: Float32Array, uint8: Uint8Array, int32: Int32Array };

function fromText(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes.buffer;
}

// A header with each of its arrays pointing into `buffer`, from `start` on (views/report/packed.py: parted).
function placed(header, buffer, start) {
  const place = (value) => {
    if (value === null || typeof value !== "object") return value;
    if (value.dtype && value.bytes !== undefined) return { ...value, buffer, at: start + value.at };
    for (const key of Object.keys(value)) value[key] = place(value[key]);
    return value;
  };
  return place(header);
}

// An answer as it came over the wire (views/report/packed.py: wire).
export function openWire(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  return placed(JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length))), buffer, 8 + length);
}

// What the page itself carries (views/report/packed.py: carried): its words at once, and a promise of its numbers, which are then
// where the words name them.
export function openCarried() {
  const header = JSON.parse(document.getElementById("qkv-payload").textContent);
  return { header, numbers: inflated(header) };
}

async function inflated(header) {
  if (!globalThis.DecompressionStream) throw new Error("This browser is too old to open the numbers of this file; it takes Chrome or Edge 80, Firefox 113, Safari 16.4 or a newer one.");
  const deflated = new Blob([fromText(document.getElementById("qkv-numbers").textContent)]);
  const buffer = await new Response(deflated.stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
  placed(header, buffer, 0);
}

// The bytes of an array as text again, for what is handed on as a text.
export function textOf(packed) {
  if (!packed.buffer) return packed.data;
  const bytes = new Uint8Array(packed.buffer, packed.at, packed.bytes);
  let binary = "";
  for (let i = 0; i < bytes.length; i += 8192) binary += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(binary);
}

/**
 * Values carry their scale already; `part` has its first indices fixed, without a copy.
 * @typedef {{ shape: number[], digits: number, values: any, at: (...indices: number[]) => number, part: (...indices: number[]) => any }} Unpacked
 */

/** @type {(packed: any) => Unpacked} */
const unpacked = remembered((packed) => {
  const buffer = packed.buffer ?? fromText(packed.data);
  let values = new KINDS[packed.dtype](buffer, packed.buffer ? packed.at : 0, packed.shape.reduce((a, b) => a * b, 1));
  if (packed.scale !== 1) {
    const scaled = new Float32Array(values.length);
    for (let i = 0; i < values.length; i++) scaled[i] = values[i] * packed.scale;
    values = scaled;
  }
  const strides = packed.shape.map((_, i) => packed.shape.slice(i + 1).reduce((a, b) => a * b, 1));
  const start = (indices) => indices.reduce((sum, index, i) => sum + index * strides[i], 0);
  const part = (...indices) => values.subarray(start(indices), start(indices) + (strides[indices.length - 1] ?? values.length));
  return { shape: packed.shape, digits: packed.digits, values, at: (...indices) => values[start(indices)], part };
});

/** @returns {Unpacked | null} */
export const unpack = (packed) => (packed ? unpacked(packed) : null);

// { site, layer, head } of a head's address (`L2.H3.W_Q`, `dec.L0.cross.H1.QK`), null for any other; `site` as in AttentionText.
export function headAt(address) {
  const found = address?.match(/^(?:(enc|dec)\.)?L(\d+)\.(cross\.)?H(\d+)\./);
  return found && { site: found[3] ? "cross" : found[1] ?? "", layer: Number(found[2]), head: Number(found[4]) };
}

// The matrix that an address is a head of, or itself.
export const wholeOf = (address) => address.replace(/\.(?:H|KV)\d+\./, ".");

// Index of the last recorded step that is not after `step`; 0 where all are after it.
export const stepIndex = (steps, step) => Math.max(0, d3.bisectRight(steps, step) - 1);
