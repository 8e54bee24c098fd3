// @ts-check
// The host of the live workbench.

import { h } from "./dom.js";
import { ask, listen, payload, purse } from "./server.js";
import { openWorkbench } from "./workbench.js";

const main = document.querySelector("main");
payload().then((board) => openWorkbench(main, board, { ask, listen, payload, spend: purse() }),
  (error) => main.replaceChildren(h("p.missing", null, `The folder could not be read: ${error.message}`)));
