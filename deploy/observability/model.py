"""What dashboards and alerts are made of, and the forms that Grafana and Prometheus want them in. No content here."""

import json
import re
from dataclasses import dataclass, field

RUNBOOK = "services/kvasir-server/docs/alerts.md#"
"""Where in the source tree an alert's section is; the anchor is its name in lower case."""

SELECTOR = 'job=~"$job",instance=~"$instance"'
"""What `@` stands for in a panel's query: the dashboard's choice of targets."""

COLUMNS = 24
"""Width of Grafana's grid."""


@dataclass(frozen=True)
class Query:
    """One query of a panel. `quiet`: a healthy service has no such series, so the panel shows 0 where there is none."""

    legend: str
    expr: str
    quiet: bool = False

    def bare(self, selector: str = "", interval: str = "") -> str:
        """The query for a selector (empty: everything) and a window, without the 0 of a quiet one."""
        expr = self.expr.replace("@", selector) if selector else self.expr.replace("{@}", "").replace("@,", "")
        return re.sub(r"\$__(rate_interval|range)", interval, expr) if interval else expr

    def shown(self) -> str:
        """The query as the panel has it."""
        return f"({self.bare(SELECTOR)}) or vector(0)" if self.quiet else self.bare(SELECTOR)


@dataclass(frozen=True)
class Panel:
    """`kind` is Grafana's; `unit` one of its unit ids; `steps` are thresholds as (from, colour)."""

    title: str
    why: str
    queries: list
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 6
    height: int = 7
    stacked: bool = False
    ceiling: float | None = None
    steps: tuple = ()

    def grafana(self, number: int, x: int, y: int) -> dict:
        defaults = {"unit": self.unit, "min": 0, "color": {"mode": "palette-classic"}}
        if self.ceiling is not None:
            defaults["max"] = self.ceiling
        if self.steps:
            defaults["color"] = {"mode": "thresholds"}
            steps = [{"value": start, "color": colour} for start, colour in self.steps]
            defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        if self.kind == "timeseries":
            stacking = {"mode": "normal", "group": "A"} if self.stacked else {"mode": "none"}
            defaults["custom"] = {"fillOpacity": 40 if self.stacked else 8, "lineWidth": 1, "stacking": stacking,
                                  "showPoints": "never"}
            options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
        else:
            options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "auto", "graphMode": "area",
                       "colorMode": "value"}
        targets = [
            {"refId": chr(65 + i), "expr": query.shown(), "legendFormat": query.legend,
             "datasource": {"type": "prometheus", "uid": "$datasource"}}
            for i, query in enumerate(self.queries)
        ]
        return {
            "id": number, "type": self.kind, "title": self.title, "description": self.why,
            "datasource": {"type": "prometheus", "uid": "$datasource"},
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options, "targets": targets,
        }


@dataclass(frozen=True)
class Dashboard:
    """`rows` are (question, panels), in the order in which an operator asks."""

    uid: str
    title: str
    description: str
    rows: list

    def panels(self):
        return [panel for _, panels in self.rows for panel in panels]

    def grafana(self) -> dict:
        laid_out, y, number = [], 0, 1
        for question, panels in self.rows:
            laid_out.append({"id": number, "type": "row", "title": question, "collapsed": False,
                             "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y}, "panels": []})
            number, y, x, tallest = number + 1, y + 1, 0, 0
            for panel in panels:
                if x + panel.width > COLUMNS:
                    x, y, tallest = 0, y + tallest, 0
                laid_out.append(panel.grafana(number, x, y))
                number, x, tallest = number + 1, x + panel.width, max(tallest, panel.height)
            y += tallest
        return {
            "uid": self.uid, "title": self.title, "description": self.description, "tags": ["kvasir"],
            "schemaVersion": 39, "version": 1, "editable": True, "graphTooltip": 1, "refresh": "30s",
            "time": {"from": "now-3h", "to": "now"}, "timezone": "",
            "templating": {"list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                variable("job", "Deployment", "label_values(kvasir_build_info, job)"),
                variable("instance", "Replica", 'label_values(kvasir_build_info{job=~"$job"}, instance)'),
            ]},
            "panels": laid_out,
        }

    def json(self) -> str:
        return json.dumps(self.grafana(), indent=1, ensure_ascii=False) + "\n"


def variable(name: str, label: str, query: str) -> dict:
    """A choice among a label's values, all of them at first."""
    return {"name": name, "label": label, "type": "query", "query": query, "refresh": 2, "includeAll": True, "multi": True,
            "allValue": ".*", "current": {"text": "All", "value": "$__all"},
            "datasource": {"type": "prometheus", "uid": "$datasource"}}


@dataclass(frozen=True)
class Series:
    """An input of a rule's test, in promtool's notation: `0+60x30` is 0, 60, 120, …"""

    series: str
    values: str


@dataclass(frozen=True)
class Alert:
    """An alert with both sides of its test: `fires` and `silent` are series, looked at after `at`. `also` has, for each further
    branch of the query, the series for which it fires and the labels it then has.

    `value` is what the test expects `{value}` of the description to be; the rule itself has `template` there.
    """

    name: str
    severity: str
    expr: str
    hold: str
    summary: str
    description: str
    at: str
    fires: list
    silent: list
    labels: dict = field(default_factory=dict)
    template: str = ""
    value: str = ""
    also: tuple = ()

    def rule(self) -> dict:
        return {"alert": self.name, "expr": self.expr.strip(), "for": self.hold, "labels": {"severity": self.severity},
                "annotations": self.annotations(self.template)}

    def annotations(self, value: str) -> dict:
        return {"summary": self.summary, "description": self.description.replace("{value}", value),
                "runbook": RUNBOOK + self.name.lower()}

    def tests(self) -> list:
        fires = [self.case("fires", series, [self.expected(labels)]) for series, labels in ((self.fires, self.labels), *self.also)]
        return [*fires, self.case("is silent", self.silent, [])]

    def expected(self, labels: dict) -> dict:
        return {"exp_labels": {"severity": self.severity, **labels}, "exp_annotations": self.annotations(self.value)}

    def case(self, says: str, series: list, expected: list) -> dict:
        return {"name": f"{self.name} {says}", "interval": "30s",
                "input_series": [{"series": one.series, "values": one.values} for one in series],
                "alert_rule_test": [{"eval_time": self.at, "alertname": self.name, "exp_alerts": expected}]}


def metric_names(expr: str) -> set:
    """Metrics of ours in a query, histograms by their family."""
    names = set(re.findall(r"(?<!:)\bkvasir_[a-z_]+", expr))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def yaml(value, indent: int = 0) -> str:
    """YAML of plain data. Strings are JSON strings, which YAML reads as they are; long queries become blocks."""
    pad = "  " * indent
    if isinstance(value, dict):
        return "".join(f"{pad}{key}:{after_key(item, indent)}" for key, item in value.items())
    return "".join(f"{pad}- {yaml(item, indent + 1).lstrip()}" if isinstance(item, (dict, list)) else f"{pad}- {scalar(item)}\n"
                   for item in value)


def after_key(item, indent: int) -> str:
    if isinstance(item, str) and "\n" in item:
        lines = "".join(f"{'  ' * (indent + 1)}{line}\n" for line in item.splitlines())
        return f" |-\n{lines}"
    if isinstance(item, (dict, list)) and item:
        return "\n" + yaml(item, indent + 1)
    return f" {scalar(item)}\n"


def scalar(item) -> str:
    return json.dumps(item, ensure_ascii=False)
