// Tasks across the chosen runs: means by task, and the answers to one of them side by side.

import { address, col, empty, fixed, h, num, prose, put, table } from "./dom.js";
import { backLink, chosenRuns, nav, noRuns, swatch } from "./chosen.js";

const MAX_SHOWN = 600; // characters of an answer, before a button shows the rest

export async function show(context) {
  const runs = await chosenRuns(context);
  if (!runs.length) { noRuns(context); return; }
  const query = nav(context, runs);
  if (context.query.task) return answers(context, query);
  let told;
  try { told = await context.get("/workbench/tasks", query); } catch (error) {
    if (error.status !== 422) throw error;
    put(context.box, empty("No tasks to compare.", error.message));
    return;
  }
  put(context.box, h("p", { class: "empty" }, h("b", {}, told.source === "held-out" ? "Held-out tasks" : "Rollouts by task"),
    ` ${[...new Set(told.about)].join("; ")}: mean per run, tasks of all runs first, the largest difference first.`));
  put(context.box, table([
    col("task", (row) => row.task), num("difference", (row) => fixed(row.range)),
    ...told.runs.map((run, at) => num(h("span", {}, swatch(at), run.name), (row) => fixed(row.means[at]), run.name)),
  ], told.tasks, { open: (row) => address("task", { ...query, task: row.task, source: told.source }), label: "Tasks" }));
}

async function answers(context, query) {
  const { task, source } = context.query;
  const told = await context.get("/workbench/answers", { ...query, task, source });
  const expected = told.runs.find((run) => run.expected)?.expected, prompt = told.runs.find((run) => run.prompt)?.prompt;
  put(context.box, h("h1", {}, task), backLink("tasks", query, "all tasks"),
    prompt && h("section", {}, h("h2", {}, "Prompt"), prose(prompt, MAX_SHOWN)), expected && h("section", {}, h("h2", {}, "Expected"), prose(expected, MAX_SHOWN)),
    h("div", { class: "cards" }, told.runs.map((run, at) => h("section", { class: "card" }, h("header", {}, swatch(at), h("b", {}, run.name)),
      run.problem && empty("Not read.", run.problem),
      !run.problem && !run.answers.length && empty("No answer to this task."),
      run.answers.map((one) => h("div", { class: "answer" }, h("small", {}, `step ${one.step ?? "–"}, reward `, h("b", { class: one.right ? "good" : "" }, fixed(one.reward))),
        one.text === null ? empty("No text.", "The tokenizer of the run is not on this machine.") : prose(one.text, MAX_SHOWN)))))));
  context.keys({ u: ["All tasks", () => { location.hash = address("tasks", query); }] });
}
