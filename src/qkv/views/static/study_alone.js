// @ts-check
// The page of a study as a file.

import { show } from "./carried.js";
import { openStudy } from "./study.js";

show(openStudy);
