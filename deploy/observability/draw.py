"""Draws a dashboard's panels from Prometheus' own answers, as one HTML file without scripts: what Grafana would show, without Grafana."""

import html
import json
import math
import time
from pathlib import Path
from urllib.parse import urlencode

from processes import get

MINUTES = 3
STEP_S = 2
COLOURS = ["#5794f2", "#73bf69", "#ff9830", "#f2495c", "#b877d9", "#fade2a", "#8ab8ff", "#96d98d", "#ffcb7d", "#ff7383"]
WIDTH, HEIGHT = 46, 190
"""Pixels of a grid column, and of a plot's height."""

STYLE = """body{background:#111217;color:#ccccdc;font:13px sans-serif;margin:16px;width:1140px}h1{font-size:20px}h2{font-size:15px;margin:18px 0 6px}
.row{display:flex;flex-wrap:wrap;gap:6px}.panel{background:#181b1f;border:1px solid #2c3235;padding:6px;box-sizing:border-box}
.panel h3{font-size:12px;margin:0 0 4px}.why{color:#8e8e9a;font-size:10px;min-height:24px}.stat{font-size:24px;text-align:center;padding:8px 0}
.legend{font-size:10px;color:#9fa7b3}svg{display:block}"""

SCALES = {"bytes": [(2 ** 30, "GiB"), (2 ** 20, "MiB"), (2 ** 10, "KiB"), (1, "B")], "Bps": [(2 ** 20, "MiB/s"), (2 ** 10, "KiB/s"), (1, "B/s")],
          "s": [(3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs")], "short": [(1e6, "M"), (1e3, "k"), (1, "")]}


def said(value: float, unit: str) -> str:
    """A value with its unit, as a person reads it."""
    if unit == "percentunit":
        return f"{value * 100:.1f} %"
    suffix = "/s" if unit == "reqps" else ""
    for factor, name in SCALES.get(unit, SCALES["short"]):
        if abs(value) >= factor or factor == 1 and unit != "s":
            return f"{value / factor:.3g} {name}{suffix}".strip()
    return "0"


def series(stack, query, end: float) -> list:
    """(legend, points) of a query over the last minutes."""
    expr = query.bare().replace("$__rate_interval", "30s").replace("$__range", f"{MINUTES}m")
    asked = {"query": f"({expr}) or vector(0)" if query.quiet else expr, "start": end - 60 * MINUTES, "end": end, "step": STEP_S}
    answer = json.loads(get(f"{stack.prometheus_url}/api/v1/query_range?{urlencode(asked)}"))["data"]["result"]
    found = []
    for one in answer:
        legend = query.legend or "value"
        for label, value in one["metric"].items():
            legend = legend.replace("{{" + label + "}}", value)
        points = [(float(at), float(value)) for at, value in one["values"]]
        found.append((legend if "{{" not in legend else "none", [p for p in points if not math.isnan(p[1])]))
    return [(legend, points) for legend, points in found if points]


def plot(panel, lines: list, end: float) -> str:
    """A panel's time series as SVG: lines, or areas over each other."""
    width, start = panel.width * WIDTH - 20, end - 60 * MINUTES
    sums, areas = {}, []
    for legend, points in lines:
        base = [(at, sums.get(at, 0.0) if panel.stacked else 0.0) for at, _ in points]
        top = [(at, value + under) for (at, value), (_, under) in zip(points, base)]
        if panel.stacked:
            sums.update(top)
        areas.append((legend, base, top))
    highest = panel.ceiling or max((value for _, _, top in areas for _, value in top), default=1) * 1.05 or 1
    x = lambda at: 52 + (at - start) / (60 * MINUTES) * (width - 58)  # noqa: E731
    y = lambda value: HEIGHT - 16 - min(value / highest, 1) * (HEIGHT - 26)  # noqa: E731
    parts = [f'<svg width="{width}" height="{HEIGHT}">']
    for share in (0, 0.5, 1):
        parts.append(f'<path d="M52 {y(share * highest):.1f}H{width - 6}" stroke="#2c3235"/><text x="48" y="{y(share * highest) + 4:.1f}" fill="#8e8e9a" '
                     f'font-size="10" text-anchor="end">{said(share * highest, panel.unit)}</text>')
    for index, (_, base, top) in enumerate(areas):
        colour = COLOURS[index % len(COLOURS)]
        line = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in top)
        if panel.stacked:
            under = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in reversed(base))
            parts.append(f'<polygon points="{line} {under}" fill="{colour}" fill-opacity="0.4"/>')
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
    parts.append(f'<text x="52" y="{HEIGHT - 3}" fill="#8e8e9a" font-size="10">−{MINUTES} min</text>'
                 f'<text x="{width - 6}" y="{HEIGHT - 3}" fill="#8e8e9a" font-size="10" text-anchor="end">now</text></svg>')
    legends = [f'<span style="color:{COLOURS[i % len(COLOURS)]}">●</span> {html.escape(legend)} {said(top[-1][1] - base[-1][1], panel.unit)}'
               for i, (legend, base, top) in enumerate(areas)]
    return "".join(parts) + f'<div class="legend">{" &nbsp; ".join(legends)}</div>'


def drawn(stack, panel, end: float) -> str:
    """One panel."""
    lines = [line for query in panel.queries for line in series(stack, query, end)]
    if panel.kind == "stat":
        values = [f"{html.escape(legend) if legend != 'value' else ''} {said(points[-1][1], panel.unit)}" for legend, points in lines]
        body = f'<div class="stat">{"<br>".join(values) or "No data"}</div>'
    else:
        body = plot(panel, lines, end) if lines else "No data"
    return (f'<div class="panel" style="width:{panel.width * WIDTH}px"><h3>{html.escape(panel.title)}</h3>'
            f'<div class="why">{html.escape(panel.why)}</div>{body}</div>')


def draw(stack, dashboards: list, folder: Path) -> Path:
    """All dashboards into one page."""
    folder.mkdir(parents=True, exist_ok=True)
    end, parts = time.time(), [f"<!doctype html><meta charset=utf-8><title>Kvasir's panels</title><style>{STYLE}</style>"]
    for board in dashboards:
        parts.append(f"<h1>{html.escape(board.title)}</h1>")
        for question, panels in board.rows:
            parts.append(f'<h2>{html.escape(question)}</h2><div class="row">{"".join(drawn(stack, panel, end) for panel in panels)}</div>')
    page = folder / "panels.html"
    page.write_text("\n".join(parts))
    return page
