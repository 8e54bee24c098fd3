// @ts-check
// The report's host.

import { show } from "./carried.js";
import { openPage } from "./sections.js";

show((main, payload, numbers) => openPage(main, payload, null, numbers), true);
