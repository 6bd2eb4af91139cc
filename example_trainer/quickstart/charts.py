"""Line charts as SVG text, for a report without scripts and without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 260  # size of the drawing, in SVG units; the page scales it
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 16, 36

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """Curve. ``style`` is a class of the report's style sheet: a, b or c."""

    label: str
    points: tuple[Point, ...]
    style: str = "a"
    dots: bool = False  # few, separate measurements: no line is drawn in between


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    y_range: tuple[float, float] | None = None,
    log: bool = False,
) -> str:
    """Draw an ``<svg>`` of all curves over the training step; an empty string without points.

    ``log`` draws the y axis in powers of ten and leaves out values that have none.
    """
    drawn = [Series(s.label, usable(s.points, log), s.style, s.dots) for s in series]
    drawn = [s for s in drawn if s.points]
    if not drawn:
        return ""
    xs = [x for s in drawn for x, _ in s.points]
    ys = [y for s in drawn for _, y in s.points]
    x_axis = (min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1)
    y_axis = decades(ys) if log else (y_range or pad_range(ys))
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">'
    ]
    parts += [_grid_line(y, y_axis, log) for y in (decade_ticks if log else ticks)(y_axis)]
    parts += [_x_tick(x, x_axis) for x in ticks(x_axis, whole=True)]
    parts += [_curve(s, x_axis, y_axis, log) for s in drawn]
    parts.append("</svg>")
    return "".join(parts) + _legend(drawn)


def usable(points: Sequence[Point], log: bool) -> tuple[Point, ...]:
    """Return finite points; on a logarithmic axis, the logarithms of positive values."""
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    return tuple((x, math.log10(y)) for x, y in finite if y > 0) if log else tuple(finite)


def pad_range(ys: Sequence[float]) -> tuple[float, float]:
    low, high = min(ys), max(ys)
    margin = 0.06 * (high - low) or max(0.5, abs(high) * 0.1)
    return low - margin, high + margin


def decades(powers: Sequence[float]) -> tuple[float, float]:
    low, high = math.floor(min(powers)), math.ceil(max(powers))
    return float(low), float(high if high > low else low + 1)


def decade_ticks(axis: tuple[float, float]) -> list[float]:
    stride = max(1, round((axis[1] - axis[0]) / 5))
    return [float(power) for power in range(int(axis[0]), int(axis[1]) + 1, stride)]


def ticks(axis: tuple[float, float], wanted: int = 5, whole: bool = False) -> list[float]:
    """Return about ``wanted`` round numbers within the axis."""
    low, high = axis
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    stride = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    if whole:
        stride = max(1.0, stride)
    start = math.ceil(low / stride - 1e-9)
    return [i * stride for i in range(start, math.floor(high / stride + 1e-9) + 1)]


def _px(x: float, axis: tuple[float, float]) -> float:
    return LEFT + (x - axis[0]) / (axis[1] - axis[0]) * (WIDTH - LEFT - RIGHT)


def _py(y: float, axis: tuple[float, float]) -> float:
    inside = min(max(y, axis[0]), axis[1])
    return TOP + (axis[1] - inside) / (axis[1] - axis[0]) * (HEIGHT - TOP - BOTTOM)


def _grid_line(y: float, axis: tuple[float, float], log: bool) -> str:
    at, label = _py(y, axis), f"1e{y:.0f}" if log else f"{y:.4g}"
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text class="tick" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{label}</text>'
    )


def _x_tick(x: float, axis: tuple[float, float]) -> str:
    return (
        f'<text class="tick" x="{_px(x, axis):.1f}" y="{HEIGHT - 14}" '
        f'text-anchor="middle">{x:.0f}</text>'
    )


def _curve(
    s: Series, x_axis: tuple[float, float], y_axis: tuple[float, float], log: bool
) -> str:
    at = [(_px(x, x_axis), _py(y, y_axis)) for x, y in s.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    separate = s.dots or len(at) == 1
    line = "" if separate else f'<polyline class="line {s.style}" points="{path}"/>'
    mark, radius = ("dot", 5) if separate else ("hover", 6)  # hover: seen under the pointer
    values = [f"step {x:.0f}: {10**y if log else y:.3g}" for x, y in s.points]
    return line + "".join(
        f'<circle class="{mark} {s.style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">'
        f"<title>{escape(s.label)}, {value}</title></circle>"
        for (x, y), value in zip(at, values, strict=True)
    )


def _legend(series: Sequence[Series]) -> str:
    entries = "".join(
        f'<span><i class="key {s.style}{" round" if s.dots else ""}"></i>{escape(s.label)}</span>'
        for s in series
    )
    return f'<div class="legend">{entries}<span class="axis">x: training step</span></div>'
