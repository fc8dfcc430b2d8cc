"""docs/metrics.md has every family, and no family that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.agent.metrics.exposition import FAMILIES as AGENT
from llmgw.metrics.family import Family
from llmgw.metrics.reference import metrics_page
from llmgw.server.metrics.exposition import FAMILIES as SERVER

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "metrics.md"


def test_the_table_is_what_the_families_say() -> None:
    page = PAGE.read_text()
    assert page == metrics_page(page, SERVER, AGENT), "docs/metrics.md is out of date: run scripts/docs"


def test_no_name_stands_for_two_families() -> None:
    for families in (SERVER, AGENT):
        assert len({family.name for family in families}) == len(families)
    shared = {family.name for family in SERVER} & {family.name for family in AGENT}
    assert shared == {family.name for family in SERVER if family in AGENT}


@pytest.mark.parametrize(
    "family", sorted({*SERVER, *AGENT}, key=lambda family: family.name), ids=lambda f: f.name
)
def test_a_family_says_its_bound_and_its_labels_are_no_units(family: Family) -> None:
    assert family.bound
    assert not {"le", "quantile", "job", "instance"} & set(family.labels)
    if family.labels:
        assert family.bound != "1" or family.labels == ("node",) or family.name == "llmgw_build_info"


def test_every_name_of_a_metric_in_the_documents_is_one() -> None:
    known = {family.name for family in (*SERVER, *AGENT)}
    known |= {f"{family.name}_{part}" for family in SERVER for part in ("bucket", "sum", "count")}
    known |= {name.removesuffix("_total") for name in known}
    import re

    for path in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        named = set(re.findall(r"\bllmgw_[a-z_]*[a-z]\b", path.read_text()))
        assert sorted(named - known - {"llmgw_shard"}) == [], path.name
