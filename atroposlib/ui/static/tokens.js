// Tokens of one sample, coloured by a number; fetched as they come into sight.

import { conversation, pictures } from "./conversation.js";
import { address, alike, count, escaped, facts, h, link, number, put, signed, visible, visit } from "./dom.js";

const PIECE = 4096; // tokens of one call
const BLOCK = 256; // tokens of one element: the browser skips blocks out of sight
const BOUND = 0.1; // |trainer minus sampler| above which n and p stop
const HUES = 6; // colours of versions, in turn

const NOTES = "the trainer sends no notes: atropos train grpo --notes-rows all";
// name: [title, column it needs, what to do if it is absent, legend]
const MODES = {
  trained: ["trained", "trained", "", "solid: trained · grey: context or masked"],
  probability: ["log p", "logprob", "the environment sent no inference_logprobs", "darker: less probable under the sampler · dotted: p < 0.1"],
  diff: ["trainer − sampler", "trainer_logprob", NOTES, `blue: trainer higher · orange: lower, underlined beyond ${BOUND} · full colour at ±1`],
  version: ["version", "version", "the inference server reports no versions", "one colour per policy version, in turn"],
  advantage: ["advantage", "advantage", "neither environment nor trainer sent advantages", "blue: above the baseline · orange, underlined: below"],
  flags: ["clipped", "flags", NOTES, "orange: clipped · struck: too old, masked · grey: filtered"],
};
const FLAGS = [[1, "clipped"], [2, "version-masked"], [4, "filtered"]];

export async function show(context) {
  const [gid, row] = context.rest;
  const path = `/explore/groups/${gid}/rows/${row}`;
  const first = await context.get(path, { from: 0, to: PIECE });
  const state = { mode: MODES[context.query.mode] ? context.query.mode : "probability", ids: false, at: -1, columns: {}, n: 0, pinned: false };
  const text = h("div", { class: "tokens", role: "group", "aria-label": "Tokens" });
  const tail = h("p", { class: "tail" });
  const inspector = h("output", { class: "inspector", "aria-live": "polite" }, "Hover over a token, or move with the arrow keys.");
  const legend = h("p", { class: "legend" });
  const tabs = h("div", { class: "modes", role: "tablist", "aria-label": "Colour" }, Object.entries(MODES).map(([name, [title]], at) =>
    h("button", { role: "tab", "data-mode": name, onclick: () => paint(name) }, h("kbd", {}, at + 1), ` ${title}`)));
  put(context.box, h("h1", {}, `Sample ${row} of `, link(address(`group/${gid}`, { row }), `group ${gid}`)),
    facts(["tokens", count(first.n_tokens)], ["tokenizer", first.tokenizer?.split("/").pop() ?? "not found: ids are shown"], ...meta(first.metadata)),
    pictures(first.images), messages(first.messages), tabs, legend, text, tail, inspector);

  const nodeOf = (at) => text.querySelector(`[data-at="${at}"]`);
  function add(piece) {
    for (const [name, values] of Object.entries(piece.columns)) {
      if (values !== null) state.columns[name] = (state.columns[name] ?? []).concat(values);
    }
    for (let from = state.n; from < piece.to; from += BLOCK) {
      const block = h("span", { class: "block" });
      for (let at = from; at < Math.min(piece.to, from + BLOCK); at += 1) block.append(token(state, at));
      text.append(block);
    }
    state.n = piece.to;
    tail.replaceChildren(state.n < first.n_tokens ? `${count(state.n)} of ${count(first.n_tokens)} tokens; more as you scroll` : "");
  }
  let busy = null;
  const more = () => {
    if (state.n >= first.n_tokens) return null;
    busy ??= context.get(path, { from: state.n, to: state.n + PIECE }).then(add).finally(() => { busy = null; });
    return busy;
  };
  function paint(name) {
    state.mode = name;
    const [title, column, remedy, words] = MODES[name];
    for (const tab of tabs.children) tab.setAttribute("aria-selected", tab.dataset.mode === name);
    const lacks = !state.columns[column]?.some((value) => value !== null);
    legend.replaceChildren(...(lacks ? [h("b", {}, `No ${title}: `), `${remedy}.`] : [words]));
    for (const node of text.querySelectorAll(".tok")) colour(state, node);
    remember();
  }
  const remember = () => context.replace(`tokens/${gid}/${row}`, { mode: state.mode, token: state.at < 0 ? null : state.at });
  function inspect(at) {
    const c = state.columns;
    const value = (name) => c[name]?.[at] ?? null;
    const diff = difference(c, at);
    const flags = FLAGS.filter(([bit]) => value("flags") & bit).map(([, name]) => name).join(", ");
    const logprob = value("trained") ? value("logprob") : null;
    inspector.replaceChildren(facts(["token", count(at)], ["id", count(value("id")).replaceAll(",", "")],
      ["text", value("text") === null ? "–" : h("code", {}, `“${value("text").replaceAll("\n", "\\n").replaceAll("\t", "\\t")}”`)],
      ["trained", value("trained") ? "yes" : "no"], ["log p", number(logprob)], ["p", logprob === null ? "–" : number(Math.exp(logprob))],
      ["trainer", number(value("trainer_logprob"))], ["Δ", signed(diff, 3)],
      ["version", number(value("version") < 0 ? null : value("version"), 0)], ["advantage", signed(value("advantage"))], flags && ["flags", flags]));
  }
  async function go(at, scroll = true) {
    while (at >= state.n && state.n < first.n_tokens) await more();
    nodeOf(state.at)?.classList.remove("cursor");
    state.at = Math.max(0, Math.min(first.n_tokens - 1, at));
    const node = nodeOf(state.at);
    node?.classList.add("cursor");
    if (scroll) node?.scrollIntoView({ block: "center" });
    inspect(state.at);
    remember();
  }
  async function jump(by) { // to the next token whose difference is over the bound
    for (let at = state.at + by; at >= 0 && at < first.n_tokens; at += by) {
      if (at >= state.n) await more();
      if (Math.abs(difference(state.columns, at) ?? 0) > BOUND) { await go(at); return; }
    }
    inspector.replaceChildren(`No ${by > 0 ? "later" : "earlier"} token differs by more than ${BOUND}.`);
  }
  add(first);
  paint(state.mode);
  text.addEventListener("pointerover", (event) => { const node = event.target.closest(".tok"); if (node) inspect(Number(node.dataset.at)); });
  text.addEventListener("click", (event) => { const node = event.target.closest(".tok"); if (node) go(Number(node.dataset.at), false); });
  const sight = new IntersectionObserver((seen) => { if (seen.some((one) => one.isIntersecting)) more(); }, { rootMargin: "600px" });
  sight.observe(tail);
  context.signal.addEventListener("abort", () => sight.disconnect());
  if (context.query.token !== undefined) await go(Number(context.query.token));
  const names = Object.keys(MODES);
  context.keys({
    ...Object.fromEntries(names.map((name, at) => [at + 1, [`Colour by ${MODES[name][0]}`, () => paint(name)]])),
    ...alike(["ArrowRight", "l"], "Next token", () => go(state.at + 1)), ...alike(["ArrowLeft", "h"], "Previous token", () => go(state.at - 1)),
    n: [`Next token with |Δ| over ${BOUND}`, () => jump(1)], p: ["Previous one", () => jump(-1)],
    i: ["Ids instead of text", () => { state.ids = !state.ids; for (const node of text.querySelectorAll(".tok")) fill(state, node); }],
    j: ["Next sample", () => visit(`tokens/${gid}/${Number(row) + 1}`, { mode: state.mode })],
    k: ["Previous sample", () => visit(`tokens/${gid}/${Math.max(0, Number(row) - 1)}`, { mode: state.mode })],
    u: ["Up to the group", () => visit(`group/${gid}`, { row })],
  });
}

function difference(columns, at) {
  const [trainer, sampler] = [columns.trainer_logprob?.[at] ?? null, columns.logprob?.[at] ?? null];
  return trainer === null || sampler === null || !columns.trained[at] ? null : trainer - sampler;
}

function token(state, at) {
  const node = document.createElement("span");
  node.dataset.at = at;
  fill(state, node);
  return node;
}

function fill(state, node) {
  const at = node.dataset.at;
  const text = state.columns.text?.[at];
  const bare = state.ids || text === null || text === undefined;
  node.className = "tok";
  if (bare) { node.replaceChildren(String(state.columns.id[at])); node.classList.add("id"); }
  else node.replaceChildren(visible(text.replaceAll("\t", "→\t").replaceAll("\n", "↵\n")));
  if (Number(at) === state.at) node.classList.add("cursor");
  colour(state, node);
}

// Strength 0..1 and a sign as a class: a negative one is underlined, not only of another hue.
function shade(mode, columns, at) {
  const value = columns[MODES[mode][1]]?.[at] ?? null;
  const trained = columns.trained[at];
  if (mode === "trained") return trained ? ["pos", 0.35] : ["dim", 0];
  if (mode === "diff") {
    const diff = difference(columns, at);
    return diff === null ? ["dim", 0] : [diff >= 0 ? "pos" : diff < -BOUND ? "neg" : "faint", Math.min(1, Math.sqrt(Math.abs(diff)))];
  }
  if (value === null || !trained) return ["dim", 0];
  if (mode === "probability") return [value < Math.log(0.1) ? "rare" : "grey", Math.min(1, -value / 6)];
  if (mode === "version") return [`hue${value % HUES}`, 0.3];
  if (mode === "advantage") return [value < 0 ? "neg" : "pos", Math.min(1, Math.abs(value) / 2)];
  return value & 2 ? ["struck", 0] : value & 4 ? ["dim", 0] : value & 1 ? ["neg", 0.8] : ["grey", 0];
}

function colour(state, node) {
  const [kind, strength] = shade(state.mode, state.columns, Number(node.dataset.at));
  const kept = ["cursor", "id"].filter((name) => node.classList.contains(name)).join(" ");
  node.className = `tok ${kind} ${kept}`;
  node.style.setProperty("--a", `${Math.round(strength * 85)}%`);
}

const meta = (metadata) => Object.entries(metadata ?? {}).filter(([, v]) => typeof v !== "object" || v === null)
  .slice(0, 12).map(([name, value]) => [name, escaped(String(value)).slice(0, 200)]);

const messages = (list) => list?.length > 0
  && h("details", {}, h("summary", {}, `${count(list.length)} messages`), conversation(list));
