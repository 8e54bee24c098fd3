// The report's host: the payload stands in the file, and nothing can be asked.

import { openPage } from "./rooms.js";

openPage(document.querySelector("main"), JSON.parse(document.getElementById("qkv-payload").textContent));
