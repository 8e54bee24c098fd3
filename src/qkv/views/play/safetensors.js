// @ts-check
// Weights as a safetensors file (F32, one entry an address), as qkv writes model.safetensors. Saving only names and
// numbers, there is nothing in it that could run.

export function safetensors(entries, weights, facts) {
  const header = { __metadata__: facts };
  let end = 0;
  for (const { address, shape, size } of entries) {
    header[address] = { dtype: "F32", shape, data_offsets: [end, end + 4 * size] };
    end += 4 * size;
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const padded = Math.ceil(text.length / 8) * 8;
  const bytes = new Uint8Array(8 + padded + end);
  const view = new DataView(bytes.buffer);
  view.setBigUint64(0, BigInt(padded), true);
  bytes.fill(32, 8, 8 + padded);
  bytes.set(text, 8);
  let at = 8 + padded;
  for (const { start, size } of entries) {
    for (let i = 0; i < size; i++, at += 4) view.setFloat32(at, weights[start + i], true);
  }
  return bytes;
}
