// Curves of several runs over each other: a line each, and a band from the lowest to the highest seed.

import { h, number } from "./dom.js";
import { STEPS, colourOf, valueRange } from "./chart.js";
import { swatch, tint } from "./chosen.js";

const HEIGHT = 190;
const hasBand = (points) => points.some(([, mean, low, high]) => low !== mean || high !== mean);
const faded = (colour) => colour.replace(/^rgb\(/, "rgba(").replace(/\)$/, ", .16)");

// series: [{label, at, points: [[x, mean, lowest, highest]]}]; at: number of its colour.
export function overlay({ title, series, xTitle, signal }) {
  const curves = series.filter((one) => one.points.length);
  const xs = [...new Set(curves.flatMap((one) => one.points.map(([x]) => x)))].sort((a, b) => a - b);
  const data = [xs], lines = [{}], bands = [], shown = [];
  const place = h("div", { class: "plot" }), readout = h("div", { class: "points readout" });
  const figure = h("figure", { class: "chart" }, h("figcaption", {}, h("b", {}, title), h("small", {}, ` by ${xTitle}`)), place, readout);
  let plot = null;
  for (const one of curves) {
    const at = new Map(one.points.map((point) => [point[0], point]));
    const column = (n) => xs.map((x) => at.get(x)?.[n] ?? null);
    if (hasBand(one.points)) {
      bands.push({ series: [data.length + 1, data.length], at: one.at });
      data.push(column(2), column(3));
      lines.push({ at: one.at, edge: true }, { at: one.at, edge: true });
    }
    shown.push([one, data.length]);
    data.push(column(1));
    lines.push({ at: one.at });
  }
  const values = (of) => shown.map(([one, n]) => h("span", {}, swatch(one.at), h("b", {}, number(of(n), 4))));
  const last = () => readout.replaceChildren(h("span", {}, "last:"), ...values((n) => data[n].findLast((y) => y !== null)));
  const draw = () => {
    plot?.destroy();
    const axis = { stroke: colourOf("--soft"), grid: { stroke: colourOf("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    plot = new uPlot({
      width: Math.max(200, place.clientWidth), height: HEIGHT, legend: { show: false }, padding: [8, 8, 0, 0],
      cursor: { y: false, drag: { x: true, y: false }, points: { size: 5 } }, scales: { x: { time: false }, y: { range: valueRange } },
      axes: [{ ...axis, size: 24, space: 70, incrs: STEPS, values: (_, splits) => splits.map((v) => (v >= 1e4 ? `${number(v / 1e3, v >= 1e6 ? 0 : 1)}k` : number(v, 0))) },
        { ...axis, size: 48, space: 28, values: (_, splits) => splits.map((v) => (v === null ? "" : number(v, 2))) }],
      series: lines.map((one, n) => (n === 0 ? {} : { stroke: one.edge ? "transparent" : colourOf(tint(one.at)), width: one.edge ? 0 : 1.5, spanGaps: true,
        points: { show: !one.edge && xs.length < 2, size: 5 } })),
      bands: bands.map((one) => ({ series: one.series, fill: faded(colourOf(tint(one.at))) })),
      hooks: { setCursor: [(u) => {
        const idx = u.cursor.idx, known = idx !== null && idx !== undefined;
        if (known) readout.replaceChildren(h("span", {}, `${number(xs[idx], 0)}:`), ...values((n) => data[n][idx])); else last();
      }] },
    }, data, place);
    last();
  };
  const seen = new ResizeObserver(draw);
  seen.observe(place);
  document.addEventListener("scheme", draw, { signal });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw, { signal });
  signal?.addEventListener("abort", () => { seen.disconnect(); plot?.destroy(); });
  return figure;
}
