// Why: findings of the doctor, and events of the run.

import { col, count, empty, h, num, prose, section, table, time } from "./dom.js";

const SHOWN = 500; // events, the newest

export async function show(context) {
  const [findings, events] = [h("div", {}), h("div", {})];
  context.box.append(section("Findings", findings), section("Events", events));
  let seen = "", after;
  const rows = new Map(); // by id: the last page is asked for again until it is full
  await context.live(async () => {
    const [why, more] = await Promise.all([context.optional("/explore/why"), context.optional("/explore/events", { after, limit: 200 })]);
    if (JSON.stringify(why) !== seen) {
      seen = JSON.stringify(why);
      findings.replaceChildren(...(why?.findings ?? []).map(finding));
      if (!why) findings.append(empty("No findings here.", "Ask the API: atropos why"));
      else if (!why.findings.length) findings.append(empty(`The run is ${why.state}.`, why.line));
    }
    const before = rows.size;
    for (const one of more?.events ?? []) rows.set(one.id, one);
    after = more?.next ?? after;
    if (rows.size > before || !events.firstChild) events.replaceChildren(rows.size ? list([...rows.values()].slice(-SHOWN).reverse()) : empty("No event is stored.", "GET /events streams those of now."));
  });
}

const finding = (one) => h("article", { class: `card finding ${one.severity}` },
  h("header", {}, h("b", {}, one.cause), h("span", { class: "grow" }), h("small", {}, one.severity, " · rule ", one.rule, one.at ? ` · ${time(one.at)}` : "")),
  one.evidence.length > 0 && h("ul", {}, one.evidence.map((text) => h("li", {}, text))),
  one.remedy && h("p", {}, h("b", {}, "To do: "), h("code", {}, one.remedy)));

const list = (rows) => table([num("at", (e) => time(e.at)), col("event", (e) => h("b", {}, e.kind)),
  col("", (e) => Object.entries(e.fields).map(([name, value]) => h("span", { class: "pairs" }, h("small", {}, `${name} `), typeof value === "number" ? count(value) : prose(String(typeof value === "object" ? JSON.stringify(value) : value), 500))))],
rows, { label: "Events" });
