// @ts-check
// The two vendored libraries. Their files in vendor/ are classic scripts that the host loads first.

export const d3 = globalThis.d3;
export const Plot = globalThis.Plot;
