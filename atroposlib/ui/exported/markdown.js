// Markdown of a model as elements. Its HTML, links and pictures stay text: nothing is loaded.

import { h, prose } from "./dom.js";
import { kept } from "./kept.js";

const MAX_TEXT = 20000; // characters of one text, before a button shows the rest
// \x60 is a backtick.
const INLINE = /\x60([^\x60\n]+)\x60|\*\*([^*\n]+)\*\*|(?<![\w*\\])\*([^\s*][^*\n]*)\*(?!\w)/g;

function inline(text) {
  const out = [];
  let from = 0;
  for (const { 0: whole, 1: code, 2: strong, 3: weak, index } of text.matchAll(INLINE)) {
    const node = code ? h("code", {}, code) : strong ? h("strong", {}, inline(strong)) : h("em", {}, inline(weak));
    out.push(text.slice(from, index), node);
    from = index + whole.length;
  }
  return [...out, text.slice(from)];
}

const isRule = (line) => line !== undefined && line.includes("-") && line.includes("|") && !/[^\s:|-]/.test(line);
const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => inline(cell.trim()));
const row = (tag, line) => h("tr", {}, cells(line).map((cell) => h(tag, {}, cell)));

function markdown(text) { // paragraphs, fenced code, tables, headings, emphasis
  const lines = text.split("\n"), out = [];
  let plain = [];
  const end = () => { if (plain.some((line) => line.trim())) out.push(h("p", {}, inline(plain.join("\n").trim()))); plain = []; };
  const block = (...nodes) => { end(); out.push(...nodes); };
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at], fence = /^ {0,3}(\x60{3,}|~{3,})/.exec(line)?.[1];
    if (fence) {
      const from = at + 1;
      for (at = from; at < lines.length && !lines[at].trimStart().startsWith(fence);) at += 1;
      block(h("pre", {}, lines.slice(from, at).join("\n")));
    } else if (line.includes("|") && isRule(lines[at + 1])) {
      const from = at + 2;
      for (at = from; lines[at]?.includes("|");) at += 1;
      block(h("table", {}, row("th", line), lines.slice(from, at).map((one) => row("td", one))));
      at -= 1;
    } else if (/^#{1,6} /.test(line)) block(h("p", {}, h("strong", {}, inline(line.replace(/^#+ /, "")))));
    else if (line.trim()) plain.push(line);
    else end();
  }
  end();
  return out;
}

kept.markdown = (text) => h("div", { class: "md" }, markdown(text.slice(0, MAX_TEXT)),
  text.length > MAX_TEXT && prose(text.slice(MAX_TEXT), 0));
