// The page of a study as a file: the payload stands in it.

import { openStudy } from "./studied.js";

openStudy(document.querySelector("main"), JSON.parse(document.getElementById("qkv-payload").textContent));
