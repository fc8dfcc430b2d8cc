"""The table of docs/metrics.md, from the families themselves."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.metrics.family import Family

BEGIN, END = "<!-- the families: written by scripts/docs -->\n", "<!-- the end of the families -->\n"


def metrics_page(page: str, server: Iterable[Family], agent: Iterable[Family]) -> str:
    """`page` with the table of these families between its two marks. Raises ValueError where they are missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the line {BEGIN.strip()} or {END.strip()}")
    return f"{before}{begin}\n{_table(list(server), list(agent))}\n{end}{after}"


def _table(server: list[Family], agent: list[Family]) -> str:
    lines = [
        "| name | type | labels | told by | meaning | series, at most |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for family in [*server, *(family for family in agent if family not in server)]:
        both = family in server and family in agent
        told_by = "both" if both else "server" if family in server else "agent"
        labels = ", ".join(f"`{label}`" for label in family.labels)
        cells = [f"`{family.name}`", family.kind, labels, told_by, family.help, family.bound]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
