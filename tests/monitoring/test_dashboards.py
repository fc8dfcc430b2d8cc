"""examples/grafana: dashboards that Grafana imports, whose every query is of metrics that there are."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.monitoring.queries import FAMILIES, ROOT, Reader

FOLDER = ROOT / "examples" / "grafana"
BOARDS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in board["panels"] if panel["type"] != "row"]
# Grafana's units (packages/grafana-data, valueFormats/categories.ts).
UNITS = {"short", "s", "percentunit", "reqps", "celsius", "watt", "Bps", "bps", "bytes"}
# What stands for Grafana's and the dashboards' own variables while a query is read.
STANDS_FOR = {"__rate_interval": "5m", "job": "llmgw", "model": ".*", "node": ".*", "fabric": ".*"}


def filled(text: str) -> str:
    return re.sub(r"\$(\w+)", lambda found: STANDS_FOR[found[1]], text)


def test_there_is_a_dashboard_for_each_question() -> None:
    assert set(BOARDS) == {"fleet", "model", "fabric"}


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_a_dashboard_can_be_imported_and_asks_whatever_data_source_is_chosen(name: str) -> None:
    board = BOARDS[name]
    assert (board["uid"], board["tags"]) == (f"llmgw-{name}", ["llmgw"])
    assert board["title"]
    assert board["description"]
    assert board["schemaVersion"] >= 36
    # A number that another Grafana gave it would make the import replace a stranger's.
    assert "id" not in board
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    for variable in list(variables.values())[1:]:
        assert variable["datasource"]["uid"] == "${datasource}"
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
        family = FAMILIES[selector.partition("{")[0]]
        assert label in (*family.labels, "job")
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert 0 <= at["x"] <= at["x"] + at["w"] <= 24, panel["title"]


def test_no_two_panels_of_a_dashboard_lie_on_each_other() -> None:
    for board in BOARDS.values():
        taken: dict[tuple[int, int], str] = {}
        for panel in board["panels"]:
            at = panel["gridPos"]
            for x in range(at["x"], at["x"] + at["w"]):
                for y in range(at["y"], at["y"] + at["h"]):
                    assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                    taken[x, y] = panel["title"]


@pytest.mark.parametrize(("name", "panel"), PANELS, ids=[f"{name}: {panel['title']}" for name, panel in PANELS])
def test_a_panel_asks_for_what_there_is_with_its_unit_and_a_description(name: str, panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    used = {variable["name"] for variable in BOARDS[name]["templating"]["list"]} | {"__rate_interval"}
    refs = [target["refId"] for target in panel["targets"]]
    assert len(refs) == len(set(refs)) > 0
    for target in panel["targets"]:
        assert set(re.findall(r"\$(\w+)", target["expr"])) <= used
        reader = Reader(filled(target["expr"]), {"llmgw"})
        assert reader.wrong == []
        assert reader.families
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert label in reader.labels, f"{{{{{label}}}}} is empty"


def test_the_model_s_dashboard_has_the_numbers_of_the_stock_dashboard_for_vllm() -> None:
    titles = {panel["title"] for panel in BOARDS["model"]["panels"]}
    assert titles >= {
        "End-to-end latency",
        "Token throughput",
        "Time per output token",
        "Scheduler state",
        "Time to first token",
        "Cache utilization",
        "Queue time",
    }


def test_the_wheel_brings_the_dashboards_as_it_brings_units() -> None:
    # tests/test_package.py looks into the wheel: it has all of examples/.
    assert sorted(path.name for path in FOLDER.iterdir()) == ["fabric.json", "fleet.json", "model.json"]
