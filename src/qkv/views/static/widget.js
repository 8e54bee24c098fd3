// @ts-check
// The notebook's host, an anywidget module: the payload is a trait of the widget, and questions travel as messages to the
// kernel that made it. Drawn in a shadow root, so that neither page restyles the other.

import { h } from "./dom.js";
import { openWire } from "./decode.js";
import { oneView } from "./one_view.js";
import { liveIn } from "./theme.js";

const WAIT = 120000; // milliseconds until a question is given up

// ask(name, question) over anywidget's messages: each question has a number, and its answer brings it back.
function asker(model) {
  const waiting = new Map();
  let last = 0;
  const hear = (message, buffers) => {
    const entry = waiting.get(message?.number);
    if (!entry) return;
    waiting.delete(message.number);
    clearTimeout(entry.timer);
    if (message.error) return void entry.failed(new Error(message.error));
    const bytes = buffers[0];
    entry.done(openWire(bytes.buffer ? bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength) : bytes));
  };
  model.on("msg:custom", hear);
  const ask = (name, question) => new Promise((done, failed) => {
    const number = ++last;
    const timer = setTimeout(() => (waiting.delete(number), failed(new Error("The kernel does not answer; run the cell again."))), WAIT);
    waiting.set(number, { done, failed, timer });
    model.send({ ask: name, number, question });
  });
  return [ask, () => model.off("msg:custom", hear)];
}

function render({ model, el }) {
  const payload = model.get("payload");
  const [ask, deaf] = asker(model);
  const host = h("div");
  el.append(host);
  const shadow = host.attachShadow({ mode: "open" });
  const root = h("div.alone");
  shadow.append(h("style", null, model.get("style")), root);
  liveIn(root);
  const off = oneView(root, payload, ask);
  return () => {
    off();
    deaf();
    host.remove();
  };
}

export default { render };
