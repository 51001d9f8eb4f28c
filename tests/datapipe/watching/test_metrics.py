"""The dashboard, the alerts and the README name figures that exist, with labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ruamel.yaml import YAML

from datapipe.watching.metrics import RunMetrics
from datapipe.watching.totals import CommandFigures

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
NAME = re.compile(r"datapipe_run_\w+")


def _names() -> set[str]:
    figures = CommandFigures()
    figures.looked_at = 0.0
    families = RunMetrics(figures, {"mixture": "a"}).collect()
    return {family.name + ("_total" if family.type == "counter" else "") for family in families}


def _expressions() -> list[str]:
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    assert len(panels) <= 15
    assert all(panel["title"] for panel in panels)
    rules = [rule for group in YAML(typ="safe").load((DEPLOY / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    return [target["expr"] for panel in panels for target in panel["targets"]] + [rule["expr"] for rule in rules]


def test_every_expression_of_the_dashboard_and_the_alerts_names_figures_that_exist() -> None:
    known = _names()
    named = {name for expression in _expressions() for name in NAME.findall(expression)}
    histograms = {name.removesuffix("_bucket") for name in named if name.endswith("_bucket")}
    named = {name for name in named if not name.endswith("_bucket")} | histograms
    assert named <= known
    assert known - named <= {
        f"datapipe_run_{name}" for name in ("info", "commit_records", "published_total", "looked_timestamp_seconds")
    }


def test_readme_lists_every_figure() -> None:
    text = (ROOT / "datapipe/watching/README.md").read_text(encoding="utf-8")
    assert set(NAME.findall(text)) == _names()
