// Views of the workbench, and the folder it shows for the head.

import { optional } from "./api.js";
import { h } from "./dom.js";

export const VIEWS = { // name in the address: [title, key after g, module]
  "": ["Runs", "r", "runs"], compare: ["Compare", "c", "compare"], tasks: ["Tasks", "t", "tasks"], diff: ["Diff", "d", "diff"],
  task: [null, null, "tasks"],
};
export const PARENT = { task: "tasks" };
export const HELP = "Start it again: atropos ui.";

export async function head() {
  const told = await optional("/workbench/runs").catch(() => null);
  return told && h("span", {}, told.root);
}
