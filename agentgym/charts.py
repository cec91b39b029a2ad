"""Small charts as inline SVG for the report: no script, no external resource, colours from the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

LEFT, RIGHT, TOP, BOTTOM = 40, 8, 12, 26  # margins of the plot area, at least
CHARACTER = 7.6  # pixels, at the larger of the two sizes of a label
NARROW, WIDE = 350, 900  # widths of a chart that takes the whole width of a small and of a large screen


class Point(NamedTuple):
    """A value at a step, with its interval where there is one; y is None where nothing was measured."""

    x: float
    y: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve (or, with `dots`, separate points with their intervals; with `band`, the intervals as a band)."""

    name: str
    points: Sequence[Point]
    dots: bool = False
    band: bool = False

    def finite(self) -> list[Point]:
        """The points that have a value."""
        return [point for point in self.points if point.y is not None and math.isfinite(point.y)]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps values to the plot area of a chart."""

    width: int
    height: int
    x: tuple[float, float]
    y: tuple[float, float]
    ticks: tuple[float, ...] = field(default=())
    left: float = LEFT

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a value."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        plot_width, plot_height = self.width - self.left - RIGHT, self.height - TOP - BOTTOM
        return self.left + across * plot_width, TOP + (1 - up) * plot_height


def whole_width(draw: Callable[[int], str]) -> str:
    """A chart that takes the whole width, drawn for large and for small screens; the page shows the one that fits."""
    large, small = draw(WIDE), draw(NARROW)
    return f'<div class="large">{large}</div><div class="small">{small}</div>' if large else ""


def line_chart(
    title: str, series: Sequence[Series], *, note: str = "", percent: bool = False, width: int = 320, height: int = 170
) -> str:
    """A figure with the curves of `series` over steps; empty if none of them has a value."""
    series = [one for one in series if one.finite()]
    if not series:
        return ""
    scale = _scale(series, percent, width, height)
    marks = "".join(_marks(one, scale, f"s{index + 1}", percent) for index, one in enumerate(series))
    picture = _svg(width, height, title, _axes(scale, percent) + marks)
    return f"<figure><figcaption>{escape(title)}{_note(note)}</figcaption>{_legend(series)}{picture}</figure>"


def interval_chart(title: str, rows: Sequence[tuple[str, float, Sequence[float] | None]], *, width: int = 400) -> str:
    """Rates between 0 and 1 under one another, each with its interval."""
    height = TOP + BOTTOM + 40 * len(rows)
    scale = Scale(width=width, height=height, x=(0.0, 1.0), y=(0.0, float(len(rows))))
    parts = []
    for x in (0.0, 0.25, 0.5, 0.75, 1.0):
        across, bottom = scale.at(x, 0)
        parts.append(f'<line class="rule" x1="{across:.1f}" x2="{across:.1f}" y1="{TOP}" y2="{bottom:.1f}"/>')
        anchor = {0.0: "start", 1.0: "end"}.get(x, "middle")
        parts.append(f'<text x="{across:.1f}" y="{bottom + 17:.1f}" text-anchor="{anchor}">{x:.0%}</text>')
    for index, (name, rate, interval) in enumerate(rows):
        parts.append(_rate_row(scale, len(rows) - index - 0.5, name, rate, interval, index + 1 == len(rows)))
    return f"<figure>{_svg(width, height, title, ''.join(parts))}</figure>"


def _rate_row(scale: Scale, y: float, name: str, rate: float, interval: Sequence[float] | None, last: bool) -> str:
    across, down = scale.at(rate, y)
    colour = "s1" if last else "quiet"
    whisker = ""
    if interval:
        left, right = scale.at(interval[0], y)[0], scale.at(interval[1], y)[0]
        whisker = f'<line class="{colour} whisker" x1="{left:.1f}" x2="{right:.1f}" y1="{down:.1f}" y2="{down:.1f}"/>'
    anchor, shift = ("end", -8) if rate > 0.5 else ("start", 8)
    words = f"{escape(name)} {rate:.1%}"
    label = f'<text class="name" x="{across + shift:.1f}" y="{down - 8:.1f}" text-anchor="{anchor}">{words}</text>'
    return f'{whisker}<circle class="{colour} dot" cx="{across:.1f}" cy="{down:.1f}" r="5"/>{label}'


def _scale(series: Sequence[Series], percent: bool, width: int, height: int) -> Scale:
    points = [point for one in series for point in one.finite()]
    xs = [point.x for point in points]
    ys = [y for point in points for y in (point.y, point.low, point.high) if y is not None]
    low, high = min(0.0, *ys), max(ys) if len(ys) == 1 else max(*ys)
    if high == low:
        high = low + (0.1 if percent else 1.0)
    ticks = _ticks(low, high, most=1.0 if percent else None)
    x = (min(xs), max(xs)) if min(xs) < max(xs) else (min(xs) - 0.5, max(xs) + 0.5)
    longest = max(len(_number(tick, percent)) for tick in ticks)
    left = max(LEFT, 10 + CHARACTER * longest)
    return Scale(width=width, height=height, x=x, y=(ticks[0], ticks[-1]), ticks=ticks, left=left)


def _ticks(low: float, high: float, most: float | None = None) -> tuple[float, ...]:
    """Three to six round values that hold low and high; none above `most` unless a value is."""
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [index * step for index in range(first, last + 1)]
    if most is not None and high <= most < ticks[-1]:
        ticks[-1] = most
    return tuple(ticks)


def _axes(scale: Scale, percent: bool) -> str:
    parts = []
    for tick in scale.ticks:
        left, down = scale.at(scale.x[0], tick)
        right = scale.width - RIGHT
        parts.append(f'<line class="rule" x1="{left:.1f}" x2="{right}" y1="{down:.1f}" y2="{down:.1f}"/>')
        words = _number(tick, percent)
        parts.append(f'<text x="{left - 6:.1f}" y="{down + 4:.1f}" text-anchor="end">{words}</text>')
    for x, anchor in ((scale.x[0], "start"), (scale.x[1], "end")):
        across = scale.at(x, scale.y[0])[0]
        words = f"step {x:g}" if anchor == "end" else f"{x:g}"
        parts.append(f'<text x="{across:.1f}" y="{scale.height - 8}" text-anchor="{anchor}">{words}</text>')
    return "".join(parts)


def _marks(series: Series, scale: Scale, colour: str, percent: bool) -> str:
    if series.dots:
        return "".join(_dot(point, series.name, scale, colour, percent) for point in series.finite())
    strokes: list[list[str]] = [[]]
    for point in series.points:  # a value that is missing breaks the line
        if point.y is None or not math.isfinite(point.y):
            strokes.append([])
        else:
            strokes[-1].append("{:.1f},{:.1f}".format(*scale.at(point.x, point.y)))
    lines = "".join(f'<polyline class="{colour} line" points="{" ".join(stroke)}"/>' for stroke in strokes if stroke)
    last = series.finite()[-1]
    if series.band:
        lines = _band(series, scale, colour) + lines
        last = Point(last.x, last.y)
    return lines + _dot(last, series.name, scale, colour, percent, radius=2.5)


def _band(series: Series, scale: Scale, colour: str) -> str:
    """The area between the lower and the upper ends of the intervals."""
    known = [(point.x, point.low, point.high) for point in series.finite() if None not in (point.low, point.high)]
    upper = [scale.at(x, high) for x, _, high in known if high is not None]
    lower = [scale.at(x, low) for x, low, _ in reversed(known) if low is not None]
    corners = " ".join(f"{across:.1f},{down:.1f}" for across, down in [*upper, *lower])
    return f'<polygon class="{colour} band" points="{corners}"/>' if corners else ""


def _dot(point: Point, name: str, scale: Scale, colour: str, percent: bool, radius: float = 4) -> str:
    assert point.y is not None
    across, down = scale.at(point.x, point.y)
    whisker = ""
    if point.low is not None and point.high is not None:
        top, bottom = scale.at(point.x, point.high)[1], scale.at(point.x, point.low)[1]
        whisker = (
            f'<line class="{colour} whisker" x1="{across:.1f}" x2="{across:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'
        )
    words = f"{escape(name)}, step {point.x:g}: {_number(point.y, percent)}"
    return (
        f'{whisker}<circle class="{colour} dot" cx="{across:.1f}" cy="{down:.1f}" r="{radius}">'
        f"<title>{words}</title></circle>"
    )


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    items = "".join(f'<span class="s{index + 1}"><i></i>{escape(one.name)}</span>' for index, one in enumerate(series))
    return f'<div class="legend">{items}</div>'


def _note(note: str) -> str:
    return f"<small>{escape(note)}</small>" if note else ""


def _number(value: float, percent: bool) -> str:
    return f"{100 * value:.3g}%" if percent else f"{value:.3g}"


def _svg(width: int, height: int, title: str, body: str) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">{body}</svg>'
