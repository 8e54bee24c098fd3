// @ts-check
// The page of a study as a file.

import { show } from "./carried.js";
import { openStudy } from "./studied.js";

show(openStudy);
