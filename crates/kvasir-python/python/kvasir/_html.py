"""Charts and tables of results for notebooks, as plain SVG and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_WIDTH, _ROW = 320, 22


def ladder(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """Draw a bar for each level, with its name, size and a label."""
    most = max((size for _, size, _ in rows), default=1.0) or 1.0
    bars = []
    for index, (name, size, text) in enumerate(rows):
        y, width = index * _ROW, max(1.0, size / most * _WIDTH)
        bars.append(
            f'<text x="0" y="{y + 15}">{escape(name)}</text>'
            f'<rect x="70" y="{y + 3}" width="{width:.1f}" height="{_ROW - 6}" fill="#4878a8"/>'
            f'<text x="{76 + width:.1f}" y="{y + 15}">{escape(text)}</text>'
        )
    area = f'width="{_WIDTH + 330}" height="{len(rows) * _ROW}"'
    style = 'font-family="sans-serif" font-size="12" fill="currentColor"'
    return f"<div>{escape(title)}</div><svg {area} {style}>{''.join(bars)}</svg>"


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Render a table."""
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    return f"<div>{escape(title)}</div><table><tr>{head}</tr>{cells}</table>"


def size(count: float) -> str:
    """Format a number of bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
