// Curves by uPlot, and their numbers as a table.

import { h, number } from "./dom.js";

const HEIGHT = 150;
export const STEPS = [1, 2, 5].flatMap((n) => [1, 10, 100, 1e3, 1e4, 1e5].map((k) => n * k)).sort((a, b) => a - b); // whole steps

export const colourOf = (name) => {
  const probe = h("span", { vars: { color: `var(${name})` } });
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
};

// uPlot would draw a curve of zeros on an axis from 0 to 100.
export const valueRange = (_, low, high) => (low === 0 && high === 0 ? [0, 1] : low === null ? [null, null] : uPlot.rangeNum(low, high, 0.1, true));

function ema(values, alpha) { // mean of the points so far, the newest weighted most
  let mean = null;
  return values.map((value) => { mean = value === null ? mean : mean === null ? value : alpha * value + (1 - alpha) * mean; return mean; });
}

// points: [[x, y]] by x; more: other curves, {points, dots}; scale: of y, as uPlot takes it.
// onPoint(x) after a click, onRange(from, to) after a drag.
export function chart({ title, points, more = [], scale = {}, smooth = 1, dots = false, onPoint, onRange, signal }) {
  const curves = [{ points, dots }, ...more].map((one) => ({ ...one, at: new Map(one.points) }));
  const xs = [...new Set(curves.flatMap((one) => [...one.at.keys()]))].sort((a, b) => a - b);
  const ys = curves.map(({ at }) => xs.map((x) => at.get(x) ?? null));
  const values = (at, digits) => ys.map((y) => number(y[at], digits)).join(", ");
  const place = h("div", { class: "plot" });
  const box = h("figure", { class: "chart" }, h("figcaption", {}, title), place,
    h("details", {}, h("summary", {}, `${xs.length} points`),
      h("div", { class: "points" }, xs.map((x, at) => h("span", {}, `${number(x)}: `, h("b", {}, values(at)))).slice(-500).reverse())));
  let plot = null;
  const draw = () => {
    plot?.destroy();
    const width = Math.max(200, place.clientWidth);
    const axis = { stroke: colourOf("--soft"), grid: { stroke: colourOf("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const accent = colourOf("--accent"), light = colourOf("--line2"), other = colourOf("--neg");
    const seldom = (one, fill) => ({ show: one.dots || xs.length < 60, size: one.dots ? 6 : 4, fill });
    plot = new uPlot({
      width, height: HEIGHT, legend: { show: false }, padding: [8, 8, 0, 0],
      cursor: { y: false, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
      scales: { x: { time: false }, y: { range: scale.distr ? undefined : valueRange, ...scale } },
      axes: [{ ...axis, size: 24, space: 60, incrs: STEPS }, { ...axis, size: 48, space: 28, values: (_, splits) => splits.map((v) => (v === null ? "" : number(v, 2))) }],
      series: [{}, { stroke: smooth < 1 ? light : accent, width: 1.25, spanGaps: more.length > 0, points: seldom(curves[0], accent) },
        ...more.map((one) => ({ stroke: other, width: one.dots ? 0 : 1.25, spanGaps: true, points: seldom(one, other) })),
        ...(smooth < 1 ? [{ stroke: accent, width: 1.5, points: { show: false } }] : [])],
      hooks: {
        setCursor: [(u) => { const at = u.cursor.idx; readout.textContent = at === null || at === undefined ? "" : ` ${number(xs[at])}: ${values(at, 4)}`; }],
        setSelect: [(u) => {
          if (u.select.width < 4 || !onRange) return;
          onRange(Math.ceil(u.posToVal(u.select.left, "x")), Math.floor(u.posToVal(u.select.left + u.select.width, "x")));
        }],
        ready: [(u) => u.over.addEventListener("click", () => { if (u.select.width < 4 && u.cursor.idx !== null) onPoint?.(xs[u.cursor.idx]); })],
      },
    }, [xs, ...ys, ...(smooth < 1 ? [ema(ys[0], smooth)] : [])], place);
  };
  const readout = h("b", { class: "readout num" });
  box.querySelector("figcaption").append(readout);
  const seen = new ResizeObserver(draw);
  seen.observe(place);
  document.addEventListener("scheme", draw, { signal });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw, { signal });
  signal?.addEventListener("abort", () => { seen.disconnect(); plot?.destroy(); });
  return box;
}
