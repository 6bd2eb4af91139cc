// Curves: a chart per key. A click shows the rollouts of that step.

import { chip, empty, h, visit } from "./dom.js";
import { chart } from "./chart.js";

const MAX_KEYS = 8;
const WORST = [[/reward|score/, "reward"], [/mismatch|diff|kl|logprob/, "-diff_max"], [/token|length/, "-n_tokens"]];
const worst = (key) => WORST.find(([name]) => name.test(key))?.[1] ?? "reward"; // the order that shows a spike first

export async function show(context) {
  const { env } = context.query;
  const smooth = context.query.ema ? Number(context.query.ema) : 1;
  let picked = (context.query.keys ?? "").split(",").filter(Boolean);
  const first = await context.get("/explore/curves", { env, keys: picked.join(",") });
  const keys = [...new Set([...first.keys, ...first.series.map((one) => one.key)])];
  const go = (changes) => visit("curves", { ...context.query, ...changes });
  if (!picked.length) picked = preferred(keys);
  const series = (await context.get("/explore/curves", { env, keys: picked.join(",") })).series;
  const field = h("input", { type: "search", placeholder: "keys", "aria-label": "Keys shown", list: "keys", autocomplete: "off",
    onchange: () => { if (keys.includes(field.value)) go({ keys: [...picked, field.value].slice(-MAX_KEYS).join(",") }); } });
  context.box.append(h("div", { class: "filters" },
    picked.map((key) => chip(key, () => go({ keys: picked.filter((k) => k !== key).join(",") }), key)),
    field, h("datalist", { id: "keys" }, keys.filter((key) => !picked.includes(key)).map((key) => h("option", { value: key }))),
    h("label", {}, h("input", { type: "checkbox", checked: smooth < 1, onchange: (event) => go({ ema: event.target.checked ? 0.1 : "" }) }), "mean of the last ten")));
  const grid = h("div", { class: "charts" });
  context.box.append(grid);
  draw(series);
  if (!series.some((one) => one.points.length)) {
    context.box.append(empty("No points yet.", "A point stands here after the first batch is trained; keys of the trainer after its first POST /steps."));
  }
  function draw(found) {
    grid.replaceChildren(...found.filter((one) => one.points.length).map((one) => chart({
      title: [h("b", {}, one.key), h("small", {}, [one.env, one.source].filter(Boolean).map((word) => ` ${word}`))],
      points: one.points, smooth, signal: context.signal,
      onPoint: (step) => rows(step, one), onRange: (from, to) => rows(`${from}..${to}`, one),
    })));
  }
  async function rows(step, { key, env: named }) { // without steps of the trainer, a point is a batch
    const { counted } = await context.get("/explore/rollouts", { step, limit: 1 });
    visit("rollouts", { [counted.n ? "step" : "batch_no"]: step, env: named, sort: worst(key) });
  }
  let seen = JSON.stringify(series);
  context.later(async () => {
    const now = (await context.get("/explore/curves", { env, keys: picked.join(",") })).series;
    if (JSON.stringify(now) !== seen && !grid.matches(":hover")) { seen = JSON.stringify(now); draw(now); }
  });
  context.keys({ "/": ["Add a key", () => field.focus()], e: ["Mean of the last ten", () => go({ ema: smooth < 1 ? "" : 0.1 })] });
}

function preferred(keys) {
  const wanted = ["reward", "reward_std", "tokens_mean", "loss", "kl", "entropy", "diff_max", "truncated_share"];
  const found = wanted.flatMap((word) => keys.filter((key) => key === word || key.endsWith(`/${word}`)).slice(0, 1));
  return (found.length ? found : keys).slice(0, MAX_KEYS);
}
