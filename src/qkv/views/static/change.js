// "Change it and look": changes in the change language, a few ready to press, any other to type. They are made on a copy of
// the model for the looking only.

import { add, clear, h, newId } from "./dom.js";

function ready(model, state) {
  const { layer: l, head } = state;
  const { d_model, n_heads, d_head } = model.get("run").sizes;
  const square = d_model === n_heads * d_head;
  return [
    square ? [`W_Q = identity`, `L${l}.W_Q=identity`] : null,
    square ? [`W_Q = W_K = identity`, `L${l}.W_[QK]=identity`] : null,
    [`cut the V path of H${head}`, `L${l}.H${head}.W_V=zero`],
    [`cut attention of L${l}`, `L${l}.W_O=zero`],
    [`L${l} attention back to its start`, `L${l}.attn=reset`],
    ["W_E back to its start", "W_E=reset"],
  ].filter(Boolean);
}

// -> { el, refresh }; `apply()` is called after `state.changes` has changed.
export function change({ model, state, apply }) {
  const id = newId("change");
  const chips = h("div.chips");
  const list = h("div.chips");
  const input = h("input", { id, type: "text", placeholder: "L0.W_Q=rank(4)", spellcheck: "false", autocomplete: "off" });
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
    add(clear(chips), ready(model, state).map(([label, text]) => h("button.chip", { type: "button", title: text, onclick: () => put(text) }, label)));
    add(clear(list), state.changes.map((text) => h("button.chip.on", { type: "button", "aria-label": `take ${text} back`, onclick: () => take(text) }, h("code", null, text), " ×")));
    list.hidden = !state.changes.length;
  }
  const form = h("form.change-form", { onsubmit: (event) => (event.preventDefault(), put(input.value.trim()), (input.value = "")) },
    h("label.small", { for: id }, "or any change, as on the command line"), input, h("button.primary", { type: "submit" }, "change"));
  refresh();
  return { el: h("details.change", null, h("summary", null, "Change it and look"), chips, form, list), refresh };
}
