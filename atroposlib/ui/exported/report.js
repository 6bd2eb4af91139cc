// Blocks of a report: its words, figures and curves come from the file, as text.

import { chart } from "./chart.js";
import { address, bar, col, empty, h, link, mark, table } from "./dom.js";
import { kept } from "./kept.js";

const TINTS = ["pos", "neg"]; // as of the curves of a chart
const FILE = /^[\w-]+(\.\w+)*\/?$/; // beside the page

const tinted = (text, tone) => h("span", { class: tone }, text);
const cell = (one) => (one === null || typeof one !== "object" ? one : [h("div", { class: "prose" }, one.text), tinted(one.note, one.tone)]);

function file(name) { // h() has addresses of this page only
  const node = h("a", {}, name);
  if (FILE.test(name)) node.setAttribute("href", name);
  return node;
}

function curves({ title, about, series, range, log }, { signal }) {
  const [first, ...more] = series;
  const keys = series.map((one, at) => h("span", { class: "key" }, h("i", { class: TINTS[at] }), one.label));
  return chart({ title: [h("b", {}, title), " ", keys, h("small", {}, about ?? "by training step")], points: first.points, dots: first.dots, more,
    scale: log ? { distr: 3 } : range ? { range } : {}, signal });
}

const BLOCKS = {
  title: ({ text }) => h("h1", {}, text),
  head: ({ text }) => h("h2", {}, text),
  text: ({ text, tone, to }) => h("p", {}, to === undefined ? tinted(text, tone) : link(address(to), text)),
  list: ({ items }) => h("ul", {}, items.map(([text, code]) => h("li", {}, text, code && [": ", h("code", {}, code)]))),
  cards: ({ pairs }) => h("div", { class: "headline" }, pairs.map(([name, value]) =>
    h("div", { class: "big" }, h("small", {}, name), h("b", {}, value)))),
  table: ({ head, rows }) => table(head.map((name, at) => col(name, (row) => cell(row[at] ?? ""))), rows),
  bars: ({ head, rows }) => table([...head.map((name, at) => col(name, (row) => row[at])), col("", (row) => bar(row.at(-1)))], rows),
  charts: ({ charts }, context) => h("div", { class: "charts" }, charts.map((one) => curves(one, context))),
  code: ({ text }) => h("div", { class: "prose" }, text),
  files: ({ text, names }) => h("p", {}, text, names.map((name) => [" ", file(name)])),
};

kept.report = (context) => kept.blocks.map(({ kind, ...block }) =>
  BLOCKS[kind]?.(block, context) ?? empty("Unknown block.", mark(true, kind)));
