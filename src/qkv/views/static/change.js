// @ts-check
// "Change it and look": changes in the change language, a few ready to press, any other to type. They are made on a copy of
// the model for the looking only.

import { add, clear, h, newId, refocused } from "./dom.js";

// Only what the catalogue of this model has: [what it does, the change].
export function ready(shapes, { layer: l, head }) {
  const has = (kind) => shapes.has(`L${l}.${kind}`);
  const square = (kind) => has(kind) && new Set(shapes.get(`L${l}.${kind}`)).size === 1;
  return [
    square("W_Q") ? ["W_Q = identity", `L${l}.W_Q=identity`] : null,
    square("W_Q") && square("W_K") ? ["W_Q = W_K = identity", `L${l}.W_[QK]=identity`] : null,
    has("W_V") ? [`cut the V path of H${head}`, `L${l}.H${head}.W_V=zero`] : null,
    has("W_O") ? [`cut attention of L${l}`, `L${l}.W_O=zero`] : null,
    has("W_Q") ? [`L${l} attention back to its start`, `L${l}.attn=reset`] : null,
    has("W_hh") ? [`no memory in L${l}`, `L${l}.W_hh*=zero`] : null,
    has("W_ih") ? [`L${l} back to its start`, `L${l}.W_*=reset`] : null,
    has("W_out") ? [`cut the MLP of L${l}`, `L${l}.W_out=zero`] : null,
    shapes.has("W_E") ? ["W_E back to its start", "W_E=reset"] : null,
  ].filter(Boolean);
}

// address -> shape of every matrix that this page knows.
const shapesOf = (model) => new Map([...(model.get("matrices")?.items ?? []), ...(model.get("map")?.rows ?? [])].map((row) => [row.address, row.shape]));

// -> { el, refresh }; `apply()` is called after `state.changes` has changed.
export function change({ model, state, apply }) {
  const id = newId("change");
  const chips = h("div.chips");
  const list = h("div.chips");
  const input = h("input", { id, type: "text", placeholder: `${[...shapesOf(model).keys()].find((address) => address.startsWith("L0.W_")) ?? "W_E"}=rank(4)`, spellcheck: "false", autocomplete: "off" });
  const put = (text) => {
    if (!text || state.changes.includes(text)) return;
    state.changes = [...state.changes, text];
    refresh();
    apply();
  };
  const take = (text) => {
    state.changes = state.changes.filter((other) => other !== text);
    refresh();
    apply();
  };
  function refresh() {
    refocused(chips, () => add(clear(chips), ready(shapesOf(model), state).map(([label, text]) => h("button.chip", { type: "button", title: text, onclick: () => put(text) }, label))));
    add(clear(list), state.changes.map((text) => h("button.chip.on", { type: "button", "aria-label": `take ${text} back`, onclick: () => take(text) }, h("code", null, text), " ×")));
    list.hidden = !state.changes.length;
  }
  const form = h("form.change-form", { onsubmit: (event) => (event.preventDefault(), put(input.value.trim()), (input.value = "")) },
    h("label.small", { for: id }, "or any change, as on the command line"), input, h("button.primary", { type: "submit" }, "change"));
  refresh();
  return { el: h("details.change", null, h("summary", null, "Change it and look"), chips, form, list), refresh };
}
