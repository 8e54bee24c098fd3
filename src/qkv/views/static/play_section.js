// @ts-check
// The Playground section: a small run goes on training in the page, in a frame of its own. A live page gives it an address; a
// report carries it as a text, to which the frame's libraries and the run's weights are added when it is opened. It opens
// over the whole window: a frame that scrolls inside a page that scrolls catches the wheel of who only wants to pass by.

import { h } from "./dom.js";
import { textOf } from "./decode.js";
import { whole } from "./format.js";

const safe = (text) => text.replaceAll("<", "\\u003c").replaceAll(">", "\\u003e").replaceAll("&", "\\u0026");

function carried(play) {
  const libraries = [...document.querySelectorAll("script[data-library]")].map((script) => `<script>${script.textContent}</${"script"}>`).join("\n");
  const weights = Object.fromEntries(Object.entries(play.weights).map(([address, packed]) => [address, { ...packed, buffer: undefined, data: textOf(packed) }]));
  const given = `<script type="application/json" id="qkv-given">${safe(JSON.stringify({ ...play, weights }))}</${"script"}>`;
  const template = JSON.parse(document.getElementById("qkv-playground").textContent);
  return template.replace("<!--given-->", () => given).replace("<!--libraries-->", () => libraries);
}

export default function render({ model, el }) {
  const play = model.get("play");
  const frame = h("iframe.playground", { title: "playground" });
  const close = h("button.chip", { type: "button", onclick: () => box.close() }, "back to the run");
  const box = h("dialog.play-window", { "aria-label": `playground, going on from ${play.name}`,
    onclose: () => frame.contentWindow?.playground?.pause() }, h("div", null, h("span", null, `Playground, going on from ${play.name}`), close), frame);
  const open = h("button.primary", { type: "button", onclick: () => {
    box.showModal();
    if (!frame.srcdoc && !frame.src) {
      if (model.get("host").kind === "page") frame.src = "playground";
      else frame.srcdoc = carried(play);
    }
    open.textContent = "back to the playground";
  } }, "go on training it here");
  el.append(h("p", null, `Two arms start from the weights of step ${whole(play.step)} of this run (${whole(play.parameters)} parameters) and train on, on your text or a short built-in one. Turn a switch on one of them and watch. You can save the result as safetensors. The run itself does not change.`),
    open, box);
  return () => box.remove();
}
