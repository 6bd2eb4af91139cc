// Weights: which server holds which version, and how long each publish took.

import { bar, count, duration, empty, h, orDash, section, table, time } from "./dom.js";

export async function show(context) {
  let seen = "";
  await context.live(async () => {
    const told = await context.optional("/explore/weights");
    if (JSON.stringify(told) === seen) return;
    seen = JSON.stringify(told);
    const { versions = [], servers = [], publishes = [] } = told ?? {};
    const newest = Math.max(-1, ...versions.map((v) => v.version));
    const slowest = Math.max(1e-9, ...publishes.map(total));
    context.box.replaceChildren(
      section("Servers", servers.length ? table([{ title: "server", cell: (s) => h("b", {}, s.name) },
        { title: "version", num: true, cell: (s) => count(s.version) },
        { title: "behind", num: true, cell: (s) => (s.version === null || newest < 0 ? "–" : h("span", { class: newest - s.version > 1 ? "bad" : "" }, count(newest - s.version))) },
        { title: "phase", cell: (s) => orDash(s.phase) }, { title: "since", num: true, cell: (s) => time(s.at) }], servers, { label: "Servers" })
        : empty("No inference server is known.", "Environments report the servers that they call once they have sampled.")),
      section("Publishes", publishes.length ? table([{ title: "version", num: true, cell: (p) => count(p.version) }, { title: "at", num: true, cell: (p) => time(p.at) },
        { title: "stage", num: true, cell: (p) => duration(p.stage_s) }, { title: "apply", num: true, cell: (p) => duration(p.apply_s) }, { title: "check", num: true, cell: (p) => duration(p.check_s) },
        { title: "", cell: (p) => bar(total(p) / slowest, { label: `${duration(total(p))} in all` }) }], [...publishes].reverse().slice(0, 200), { label: "Publishes" })
        : empty("No publish is recorded.", "The trainer reports the seconds of stage, apply and check with its steps.")),
      section("Versions", versions.length ? table([{ title: "version", num: true, cell: (v) => count(v.version) }, { title: "announced", num: true, cell: (v) => time(v.at) },
        { title: "after", num: true, cell: (v) => v.after }], spaced(versions).slice(0, 200), { label: "Versions" }) : empty("Version 0.", "The trainer has announced none yet.")));
  });
}

const total = (p) => (p.stage_s ?? 0) + (p.apply_s ?? 0) + (p.check_s ?? 0);
const spaced = (versions) => versions.map((v, at) => ({ ...v, after: at ? duration(v.at - versions[at - 1].at) : "–" })).reverse();
