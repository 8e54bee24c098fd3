// The model that a view renders: what anywidget gives in a notebook, made here from a payload for a page.
// get(key), set(key, value), on("change:key", f), off("change:key", f), save_changes().

export function createModel(values) {
  const state = { ...values };
  const listeners = new Map();
  return {
    get: (key) => state[key],
    set(key, value) {
      if (Object.is(state[key], value)) return;
      state[key] = value;
      for (const listener of [...(listeners.get(`change:${key}`) || [])]) listener();
    },
    on(event, listener) {
      if (!listeners.has(event)) listeners.set(event, new Set());
      listeners.get(event).add(listener);
    },
    off(event, listener) {
      listeners.get(event)?.delete(listener);
    },
    save_changes() {},
  };
}

// Listen, and get back how to stop.
export function watch(model, key, listener) {
  model.on(`change:${key}`, listener);
  return () => model.off(`change:${key}`, listener);
}

// Make a view again, in a place of its own, when one of its sections has changed.
export function remade(model, keys, el, make) {
  const place = document.createElement("div");
  el.append(place);
  let off = make(place) ?? (() => {});
  const again = () => {
    off();
    place.replaceChildren();
    off = make(place) ?? (() => {});
  };
  const stops = keys.map((key) => watch(model, key, again));
  return () => {
    stops.forEach((stop) => stop());
    off();
  };
}
