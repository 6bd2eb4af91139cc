// All runs: states, figures, the settings that differ; runs are chosen here.

import { bar, chip, count, duration, empty, fixed, h, mark, number, orDash, put, time, visit } from "./dom.js";
import { keysOf, nav, noRuns, pageLink, remember } from "./chosen.js";

const BAD = ["stuck", "failed", "unreachable"];
const MAX_SETTINGS = 12; // columns
const ORDERS = { // title: value of a run
  run: (run) => run.name, state: (run) => run.state, steps: (run) => run.steps, reward: (run) => run.reward ?? -Infinity,
  time: (run) => run.seconds, tokens: (run) => run.tokens, ended: (run) => run.ended ?? 0,
};

const compared = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);

function stateCell(run) {
  return [h("span", { class: `state ${run.state}`, title: run.line }, run.state), run.live && h("small", {}, " live"),
    BAD.includes(run.state) && h("div", { class: "why" }, mark(true, run.line.slice(0, 160)))];
}

function stepsCell(run) {
  return [count(run.steps), run.total ? [" ", h("small", {}, `of ${count(run.total)}`), h("div", {}, bar(run.steps / run.total, { label: "share of the steps" }))] : ""];
}

export async function show(context) {
  let told = await context.get("/workbench/runs");
  if (!told.runs.length) { noRuns(context); context.later(async () => { if ((await context.get("/workbench/runs")).runs.length) location.reload(); }); return; }
  const picked = new Set(keysOf(context.query).filter((key) => told.runs.some((run) => run.key === key)));
  let order = "run", down = false, words = "", cursor = 0;
  const field = h("input", { type: "search", placeholder: "filter: words of name, state, settings", "aria-label": "Filter", oninput: () => { words = field.value.toLowerCase(); draw(); } });
  const bars = h("div", { class: "filters" }), place = h("div", { class: "scroll" }), note = h("p", { class: "empty" });
  put(context.box, bars, place, note);

  const texts = (run) => [run.name, run.state, ...Object.entries(run.settings).map(([name, value]) => `${name}=${value}`)].join(" ").toLowerCase();
  const shown = () => told.runs.filter((run) => words.split(/\s+/).every((word) => texts(run).includes(word)))
    .sort((a, b) => (down ? -1 : 1) * compared(ORDERS[order](a), ORDERS[order](b)));
  const settings = () => told.settings.slice(0, MAX_SETTINGS);

  function toggle(key, on = !picked.has(key)) {
    if (on) picked.add(key); else picked.delete(key);
    remember([...picked]);
    context.replace("", { runs: [...picked].join(",") });
    draw();
  }
  const go = (path) => visit(path, { runs: [...picked].join(",") });

  function tools() {
    const n = picked.size;
    const groups = told.groups.filter((group) => group.runs.length > 1);
    bars.replaceChildren();
    put(bars, field,
      h("button", { onclick: () => go("compare") }, n ? `Compare ${n}` : "Compare all"), h("button", { onclick: () => go("tasks") }, "Tasks"),
      h("button", { onclick: () => go("diff"), disabled: n !== 2, title: "choose two runs" }, "Diff of two"),
      n > 0 && chip("all runs", () => { picked.clear(); toggle("", false); }, `${n} chosen`),
      groups.map((group) => h("button", { class: "seeds", title: "choose runs that differ in the seed only",
        onclick: () => { for (const key of group.runs) picked.add(key); toggle(group.runs[0], true); } }, `${group.label || "equal settings"} · ${group.runs.length} seeds`)));
  }

  function head(title, cls) {
    if (!ORDERS[title]) return h("th", { scope: "col", class: cls }, title);
    const arrow = order === title ? (down ? " ↓" : " ↑") : "";
    return h("th", { scope: "col", class: cls, "aria-sort": order === title ? (down ? "descending" : "ascending") : null },
      h("button", { onclick: () => { down = order === title ? !down : title === "reward"; order = title; draw(); } }, title, arrow));
  }

  function line(run, at) {
    const box = h("input", { type: "checkbox", checked: picked.has(run.key), "aria-label": `Choose ${run.name}`, tabIndex: -1, onclick: (event) => { event.stopPropagation(); toggle(run.key, box.checked); } });
    return h("tr", { class: `open${at === cursor ? " cursor" : ""}`, tabIndex: 0, "data-key": run.key, onfocus: () => { cursor = at; },
      onclick: (event) => { cursor = at; if (!event.target.closest("a, input")) toggle(run.key); } },
    h("td", {}, box), h("td", { class: "name" }, pageLink(run, run.name), run.problem && h("div", { class: "why" }, mark(true, run.problem))),
    h("td", {}, stateCell(run)), h("td", { class: "num" }, stepsCell(run)), h("td", { class: "num" }, fixed(run.reward)),
    h("td", { class: "num" }, duration(run.seconds)), h("td", { class: "num" }, number(run.tokens, 0)), h("td", { class: "num" }, run.live ? "–" : time(run.ended)),
    settings().map(({ name }) => h("td", { class: "set" }, orDash(run.settings[name]))));
  }

  function draw(focus = place.contains(document.activeElement)) {
    tools();
    const rows = shown();
    cursor = Math.min(cursor, Math.max(0, rows.length - 1));
    place.replaceChildren(h("table", { "aria-label": "Runs" }, h("thead", {}, h("tr", {}, head(""), head("run"), head("state"),
      ["steps", "reward", "time", "tokens", "ended"].map((title) => head(title, "num")), settings().map(({ name, short }) => h("th", { scope: "col", title: name }, short)))),
    h("tbody", {}, rows.map(line))));
    const more = told.settings.length - MAX_SETTINGS;
    note.replaceChildren();
    put(note, rows.length ? "" : "No run passes the filter. ", more > 0 && `${more} more settings differ: atropos run diff A B has all.`);
    if (focus) place.querySelectorAll("tbody tr")[cursor]?.focus();
  }

  const move = (by) => () => { cursor = Math.max(0, Math.min(shown().length - 1, cursor + by)); draw(true); };
  const here = () => shown()[cursor];
  nav(context, []);
  context.keys({
    j: ["Next run", move(1)], k: ["Run before", move(-1)], ArrowDown: ["Next run", move(1)], ArrowUp: ["Run before", move(-1)],
    x: ["Choose the run", () => here() && toggle(here().key)], " ": ["Choose the run", () => here() && toggle(here().key)],
    o: ["Open the page of the run", () => { if (here()) location.href = `../run/${here().key}/ui/`; }],
    c: ["Compare the chosen runs", () => go("compare")], t: ["Tasks of the chosen runs", () => go("tasks")],
    d: ["Diff of two runs", () => picked.size === 2 && go("diff")], "/": ["Filter", () => field.focus()],
  });
  draw();
  context.later(async () => {
    const now = await context.get("/workbench/runs");
    if (JSON.stringify(now) === JSON.stringify(told)) return;
    told = now;
    draw();
  });
}
