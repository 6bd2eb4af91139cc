// Curves of the chosen runs: by step or at equal tokens, seeds as a band or apart.

import { chip, empty, h, put, visit } from "./dom.js";
import { chosenRuns, nav, noRuns, runChips, swatch } from "./chosen.js";
import { overlay } from "./overlay.js";

const MAX_KEYS = 12;
const AXES = { step: "step", tokens: "sampled tokens" };

export async function show(context) {
  const runs = await chosenRuns(context), { query } = context;
  if (!runs.length) { noRuns(context); return; }
  nav(context, runs);
  const by = query.by === "tokens" ? "tokens" : "step", apart = Boolean(query.apart);
  const keys = runs.map((run) => run.key).join(",");
  const ask = () => context.get("/workbench/curves", { runs: keys, keys: query.keys, by, apart: apart ? "1" : "" });
  const go = (changes) => visit("compare", { ...query, runs: keys, ...changes });
  let told = await ask();
  const field = h("input", { type: "search", placeholder: "add a curve", "aria-label": "Add a curve", list: "curves", autocomplete: "off",
    onchange: () => { if (told.keys.includes(field.value)) go({ keys: [...told.shown, field.value].slice(-MAX_KEYS).join(",") }); } });
  const tabs = h("div", { class: "modes", role: "tablist" }, Object.entries(AXES).map(([name, title]) =>
    h("button", { role: "tab", "aria-selected": String(name === by), onclick: () => go({ by: name }) }, `by ${title}`)));
  put(context.box, h("div", { class: "filters" }, tabs,
    h("label", {}, h("input", { type: "checkbox", checked: !apart, onchange: () => go({ apart: apart ? "" : "1" }) }), "seeds as mean and band"),
    field, h("datalist", { id: "curves" }, told.keys.filter((key) => !told.shown.includes(key)).map((key) => h("option", { value: key })))));
  const legend = h("div", { class: "filters legend" }), grid = h("div", { class: "charts" });
  put(context.box, legend, h("details", { open: runs.length <= 6 }, h("summary", {}, `${runs.length} runs`), h("div", { class: "filters" }, runChips("compare", query, runs))),
    h("details", {}, h("summary", {}, `${told.shown.length} curves`), h("div", { class: "filters" },
      told.shown.map((key) => chip(key, () => go({ keys: told.shown.filter((one) => one !== key).join(",") }), key)))), grid);
  function draw() {
    legend.replaceChildren(...told.series.map((one, at) => h("span", { class: "key" }, swatch(at), one.label, one.runs.length > 1 && h("small", {}, ` mean of ${one.runs.length}, band lowest to highest`))));
    const charts = told.shown.map((key) => ({ title: key, series: told.series.map((one, at) => ({ label: one.label, at, points: one.curves[key] })) }))
      .filter((one) => one.series.some(({ points }) => points.length));
    grid.replaceChildren(...charts.map((one) => overlay({ ...one, xTitle: AXES[by], signal: context.signal })));
    if (!charts.length) put(grid, empty("No curve yet.", "A curve begins with the first trained step. Seeds share a curve only where all of them have steps."));
  }
  draw();
  context.keys({ s: ["By step or by tokens", () => go({ by: by === "step" ? "tokens" : "step" })], a: ["Seeds apart or together", () => go({ apart: apart ? "" : "1" })], "/": ["Add a curve", () => field.focus()] });
  if (!runs.some((run) => run.live)) return;
  context.later(async () => {
    const now = await ask();
    if (JSON.stringify(now) !== JSON.stringify(told) && !grid.matches(":hover")) { told = now; draw(); }
  });
}
