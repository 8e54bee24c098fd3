// @ts-check
// The workbench as a file.

import { show } from "./carried.js";
import { openWorkbench } from "./workbench.js";

show(openWorkbench);
