"""Small SVG pictures that are readable on light and dark pages: they bring their own background."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

LIGHT = {
    "paper": "#ffffff",
    "ink": "#24292f",
    "faint": "#57606a",
    "grid": "#d8dee4",
    "good": "#1a7f37",
    "bad": "#cf222e",
}
DARK = {
    "paper": "#0d1117",
    "ink": "#e6edf3",
    "faint": "#9198a1",
    "grid": "#30363d",
    "good": "#3fb950",
    "bad": "#ff7b72",
}

_SHAPES = (
    ".paper{fill:var(--paper)}.grid{stroke:var(--grid)}.bound{stroke:var(--faint);stroke-dasharray:5 4}"
    + "".join(
        f".{name}{{fill:var(--{name})}}.{name}-line{{stroke:var(--{name});fill:none}}"
        for name in ("ink", "faint", "good", "bad")
    )
)


@dataclass
class Svg:
    """One picture.

    Attributes:
        width: in pixels.
        height: in pixels.
        title: what it shows, for those who do not see it.
        font: of all texts.
        size: of the font in pixels.
    """

    width: int
    height: int
    title: str
    font: str = "system-ui,sans-serif"
    size: int = 12
    _parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, kind: str = "ink", anchor: str = "start") -> None:
        """Place words; spaces are kept."""
        where = f'x="{_round(x)}" y="{_round(y)}" text-anchor="{anchor}"'
        self._parts.append(f'<text {where} class="{kind}" xml:space="preserve">{escape(words)}</text>')

    def line(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        """Connect points."""
        path = " ".join(f"{_round(x)},{_round(y)}" for x, y in points)
        self._parts.append(f'<polyline class="{kind}" fill="none" points="{path}"/>')

    def rectangle(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """Fill a rectangle."""
        sizes = f'x="{_round(x)}" y="{_round(y)}" width="{_round(width)}" height="{_round(height)}"'
        self._parts.append(f'<rect {sizes} class="{kind}"/>')

    def __str__(self) -> str:
        frame = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        font = f'font-family="{self.font}" font-size="{self.size}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {frame} role="img" {font}>',
            f"<title>{escape(self.title)}</title>",
            f"<style>svg{{{_declare(LIGHT)}}}@media(prefers-color-scheme:dark){{svg{{{_declare(DARK)}}}}}{_SHAPES}</style>",
            f'<rect class="paper" width="{self.width}" height="{self.height}" rx="6"/>',
            *self._parts,
            "</svg>\n",
        ]
        return "\n".join(lines)


def _declare(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


def _round(number: float) -> str:
    """To tenths of a pixel."""
    return f"{number:.1f}".removesuffix(".0")
