// A list of any length: rows in sight are elements, of one height.

import { h } from "./dom.js";

const ROW = 25; // px, as in style.css
const SPARE = 8; // rows above and below

// columns: {key, title, width, num, cell(row), sort, wide: hidden below 760 px}
export class VirtualList {
  constructor({ columns, href, onEnd, onSort, sort, label }) {
    Object.assign(this, { all: columns, href, onEnd, onSort, sort });
    this.rows = [];
    this.made = new Map();
    this.cursor = -1;
    this.inner = h("div", { class: "inner", role: "rowgroup" });
    this.head = h("div", { class: "row head", role: "row" });
    this.node = h("div", { class: "list", role: "grid", tabIndex: 0, "aria-label": label, onscroll: () => this.draw() },
      h("div", { role: "rowgroup", class: "sticky" }, this.head), this.inner);
    this.resized = new ResizeObserver(() => { this.layout(); this.draw(); });
    this.resized.observe(this.node);
    this.layout();
  }

  layout() {
    const narrow = innerWidth < 760;
    this.columns = this.all.filter((column) => !(narrow && column.wide));
    this.node.style.setProperty("--cols", this.columns.map((c) => c.width).join(" "));
    this.head.replaceChildren(...this.columns.map((c) => {
      const state = this.sort === c.sort ? "ascending" : this.sort === `-${c.sort}` ? "descending" : null;
      const name = c.sort ? h("button", { onclick: () => this.onSort(state === "descending" ? c.sort : `-${c.sort}`) },
        c.title, state && h("span", { "aria-hidden": "true" }, state === "ascending" ? " ↑" : " ↓")) : c.title;
      return h("span", { role: "columnheader", class: c.num && "num", title: c.hint, "aria-sort": state }, name);
    }));
    this.made = new Map(); // of other columns
    this.shown = null;
  }

  set(rows, total) {
    this.rows = rows;
    this.node.setAttribute("aria-rowcount", total ?? rows.length);
    this.inner.style.setProperty("height", `${rows.length * ROW}px`);
    this.shown = null;
    this.draw();
  }

  draw() {
    const from = Math.max(0, Math.floor(this.node.scrollTop / ROW) - SPARE);
    const to = Math.min(this.rows.length, Math.ceil((this.node.scrollTop + this.node.clientHeight) / ROW) + SPARE);
    const key = `${from},${to},${this.cursor}`;
    if (key === this.shown) return;
    this.shown = key;
    if (!this.made.size) this.inner.replaceChildren();
    const made = new Map();
    let next = null;
    for (let at = to - 1; at >= from; at -= 1) {
      const row = this.rows[at], here = at === this.cursor, old = this.made.get(at);
      const node = old?.row === row && old.here === here ? old.node : h("a", { class: `row${here ? " cursor" : ""}`, href: this.href(row), role: "row", tabIndex: -1,
        "aria-rowindex": at + 2, "aria-selected": here || null, vars: { transform: `translateY(${at * ROW}px)` } },
      this.columns.map((c) => h("span", { role: "gridcell", class: c.num && "num" }, c.cell(row))));
      made.set(at, { row, here, node });
      if (node.nextSibling !== next || !node.parentNode) this.inner.insertBefore(node, next);
      if (old?.node === node) this.made.delete(at);
      next = node;
    }
    for (const { node } of this.made.values()) node.remove();
    this.made = made;
    if (to > this.rows.length - 60) this.onEnd?.();
  }

  move(by) {
    if (!this.rows.length) return;
    this.cursor = Math.max(0, Math.min(this.rows.length - 1, this.cursor + by));
    const top = this.cursor * ROW, seen = this.node.clientHeight - 2 * ROW;
    if (top < this.node.scrollTop) this.node.scrollTop = top;
    else if (top > this.node.scrollTop + seen) this.node.scrollTop = top - seen;
    this.draw();
  }

  open() {
    const row = this.rows[this.cursor];
    if (row) location.hash = this.href(row);
  }

  end() { this.resized.disconnect(); }
}
