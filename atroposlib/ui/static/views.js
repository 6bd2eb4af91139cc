// Views of the page of a run, and its name for the head.

import { chosen, optional } from "./api.js";
import { choice, h, search } from "./dom.js";
import { kept } from "./kept.js";

export const VIEWS = { // name in the address: [title, key after g, module]
  "": ["Overview", "o", "overview"], environments: ["Environments", "e", "environments"],
  batches: ["Batches", "b", "batches"], rollouts: ["Rollouts", "r", "rollouts"],
  tasks: ["Tasks", "t", "tasks"], curves: ["Curves", "c", "curves"], weights: ["Weights", "w", "weights"], why: ["Why", "y", "why"],
  batch: [null, null, "batches"], group: [null, null, "group"], tokens: [null, null, "tokens"], item: [null, null, "item"],
};
export const PARENT = { batch: "batches", group: "rollouts", tokens: "rollouts", item: "rollouts" };
export const HELP = "Start the API again: atropos api serve.";

const title = (one) => one.run_id.replace(/^(.{12})[^.]*/, "$1") || "newest";
const choose = (runs, run) => choice("Run", runs.map(title), title(run), (_, at) => { location.search = search({ run_id: at ? runs[at].run_id : "" }); });

export async function head() {
  const told = await optional("/explore/runs").catch(() => null);
  const run = chosen(told) ?? await optional("/status").then((s) => s && { ...s, live: true }, () => null);
  return run && [told?.runs[1] ? choose(told.runs, run) : h("span", { title: run.path }, title(run)), " ", h("small", {}, kept?.note ?? (run.live ? run.state : "archive"))];
}
