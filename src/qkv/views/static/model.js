// @ts-check
// The model that a view renders: what anywidget gives in a notebook, made here from a payload for a page.

/**
 * @typedef {object} Model
 * @property {(key: string) => any} get
 * @property {(key: string, value: any) => void} set
 * @property {(event: string, listener: Function) => void} on  to `change:key`
 * @property {(event: string, listener: Function) => void} off
 */

/** @param {Record<string, any>} values @returns {Model} */
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
  };
}

/**
 * Listen, and get back how to stop.
 * @param {Model} model @param {string} key @param {Function} listener
 */
export function watch(model, key, listener) {
  model.on(`change:${key}`, listener);
  return () => model.off(`change:${key}`, listener);
}
