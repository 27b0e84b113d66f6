"""Charts as SVG text without a library: scales, axes, lines, dots, bars, cells. Pure.

Colours are classes (`c0` to `c5`, `ink`, `grid`) that the page's style sheet gives a value, so that a chart follows
light, dark and print. Text is at least 12 units of a drawing 480 wide. Every number is written with one decimal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH = 480.0
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2", "10 4")
EDGE = 24.0
"""A label nearer to the right edge than this ends there, instead of being centred."""
MARKS = 6
"""Series that can be told apart; a further one looks like the first again."""
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Scale:
    """`low` to `high` of the data; `log` needs both above 0."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def around(cls, values: Iterable[float], *, log: bool = False, zero: bool = False, room: float = 0.04) -> Scale:
        """Holds all finite values, with some room; `zero`: begins there. Positive ones only if `log`."""
        found = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        low, high = (min(found), max(found)) if found else (1.0, 10.0) if log else (0.0, 1.0)
        if log:
            edge = max((high / low) ** room, 1.02)
            return cls(low / edge, high * edge, True)
        low = min(0.0, low) if zero else low
        edge = (high - low or abs(high) or 1.0) * room
        return cls(low if zero and low == 0 else low - edge, high + edge)

    def at(self, value: float) -> float:
        """0 at `low`, 1 at `high`."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values inside, at most about `most`."""
        if self.log and self.high / self.low > 3:
            tens = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for steps in ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
                found = [s * 10.0**ten for ten in tens for s in steps if self.low <= s * 10.0**ten <= self.high]
                if len(found) <= most + 1:
                    break
            return found
        step = _round_step((self.high - self.low) / most)
        first = math.ceil(self.low / step)
        return [n * step for n in range(first, math.floor(self.high / step) + 1)]


def _round_step(rough: float) -> float:
    ten = 10.0 ** math.floor(math.log10(rough))
    return next(ten * factor for factor in (1, 2, 5, 10) if ten * factor >= rough * 0.999)


def plain(value: float) -> str:
    """A tick's label: 0.5, 20, 1,500."""
    text = f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return "0" if text == "-0" else text


def percent(value: float) -> str:
    return f"{value:.0%}"


@dataclass(slots=True)
class Chart:
    """A drawing with axes. Call the marks, then `svg`.

    Args:
        x: horizontal scale.
        y: vertical scale; bars and rows of names use `Rows` in its place.
        x_label: under the axis.
        alt: what the picture says, for those who do not see it.
        height: units; the width is 480.
        left: room for the labels of the vertical axis.
        x_text, y_text: how a tick is written.
    """

    x: Scale
    y: Scale
    x_label: str
    alt: str
    height: float = 290.0
    left: float = 52.0
    right: float = 14.0
    top: float = 12.0
    bottom: float = 46.0
    x_text: Callable[[float], str] = plain
    y_text: Callable[[float], str] = plain
    y_ticks: bool = True
    _parts: list[str] = field(default_factory=list)

    def px(self, value: float) -> float:
        return self.left + self.x.at(value) * (WIDTH - self.left - self.right)

    def py(self, value: float) -> float:
        return self.height - self.bottom - self.y.at(value) * (self.height - self.bottom - self.top)

    def line(self, points: Sequence[Point], series: int, *, steps: bool = False) -> None:
        """Through the points; `steps`: horizontal to the next, then up."""
        if not points:
            return
        spots = [(self.px(x), self.py(y)) for x, y in points]
        path = [f"M{spots[0][0]:.1f} {spots[0][1]:.1f}"]
        path += [f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}" for x, y in spots[1:]]
        dash = DASHES[series % MARKS]
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(f'<path class="line c{series % MARKS}"{dashed} d="{"".join(path)}"/>')

    def dots(self, points: Sequence[Point], series: int, radius: float = 3.0, *, hollow: bool = False) -> None:
        kind = "hollow" if hollow else "dot"
        circles = "".join(f'<circle cx="{self.px(x):.1f}" cy="{self.py(y):.1f}" r="{radius:g}"/>' for x, y in points)
        self._parts.append(f'<g class="{kind} c{series % MARKS}">{circles}</g>')

    def cloud(self, points: Sequence[Point], series: int) -> None:
        """Many dots, each faint, as one path of dots of no length."""
        path = "".join(f"M{self.px(x):.1f} {self.py(y):.1f}h0" for x, y in points)
        self._parts.append(f'<path class="cloud c{series % MARKS}" d="{path}"/>')

    def rule(self, a: Point, b: Point) -> None:
        """A thin straight line of the data: equality, no difference."""
        (ax, ay), (bx, by) = ((self.px(x), self.py(y)) for x, y in (a, b))
        self._parts.append(f'<path class="rule" d="M{ax:.1f} {ay:.1f}L{bx:.1f} {by:.1f}"/>')

    def band(self, low: float, high: float, series: int) -> None:
        """A horizontal stripe from edge to edge."""
        top, base = self.py(min(high, self.y.high)), self.py(max(low, self.y.low))
        self._parts.append(
            f'<rect class="band c{series % MARKS}" x="{self.left:.1f}" y="{top:.1f}" '
            f'width="{WIDTH - self.left - self.right:.1f}" height="{max(0.0, base - top):.1f}"/>'
        )

    def bar(self, x0: float, x1: float, y: float, thick: float, series: int) -> None:
        """A horizontal bar around height `y` (data), `thick` units."""
        a, b = sorted((self.px(x0), self.px(x1)))
        self._parts.append(
            f'<rect class="bar c{series % MARKS}" x="{a:.1f}" y="{self.py(y) - thick / 2:.1f}" '
            f'width="{max(0.8, b - a):.1f}" height="{thick:.1f}"/>'
        )

    def whisker(self, x0: float, x1: float, y: float) -> None:
        a, b, h = self.px(x0), self.px(x1), self.py(y)
        self._parts.append(
            f'<path class="whisker" d="M{a:.1f} {h - 4:.1f}v8M{b:.1f} {h - 4:.1f}v8M{a:.1f} {h:.1f}H{b:.1f}"/>'
        )

    def text(self, x: float, y: float, words: str, anchor: str = "start", *, faint: bool = False) -> None:
        """At a place of the drawing, not of the data."""
        kind = ' class="faint"' if faint else ""
        self._parts.append(f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>')

    def svg(self) -> str:
        """The element."""
        base, end = self.height - self.bottom, WIDTH - self.right
        parts = [open_svg(self.height, self.alt)]
        for tick in self.x.ticks():
            at = self.px(tick)
            parts.append(f'<path class="grid" d="M{at:.1f} {self.top:.1f}V{base:.1f}"/>')
            label = escape(self.x_text(tick))
            place, anchor = (WIDTH - 1, "end") if at > WIDTH - EDGE else (at, "middle")
            parts.append(f'<text x="{place:.1f}" y="{base + 17:.1f}" text-anchor="{anchor}">{label}</text>')
        for tick in self.y.ticks() if self.y_ticks else []:
            at = self.py(tick)
            parts.append(f'<path class="grid" d="M{self.left:.1f} {at:.1f}H{end:.1f}"/>')
            label = escape(self.y_text(tick))
            parts.append(f'<text x="{self.left - 6:.1f}" y="{at + 4:.1f}" text-anchor="end">{label}</text>')
        middle = (self.left + end) / 2
        parts.append(f'<text x="{middle:.1f}" y="{base + 37:.1f}" text-anchor="middle">{escape(self.x_label)}</text>')
        return "".join([*parts, *self._parts, "</svg>"])


def open_svg(height: float, alt: str, width: float = WIDTH) -> str:
    """The start of a drawing that scales with the page and says what it shows."""
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(alt)}">'


def thinned(values: Sequence[Point], most: int) -> list[Point]:
    """At most `most` of the points, evenly by their place, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]
