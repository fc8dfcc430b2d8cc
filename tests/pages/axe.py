"""Looks for barriers on pages with axe-core (npm): names, roles, contrast, keyboard. Pages are added to `PAGES`.

axe-core is not part of this repository: `npm install --no-save axe-core` puts it into node_modules, or
`LLMGW_AXE` names the file `axe.min.js`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

PAGES = [
    "/admin",
    "/admin/nodes",
    "/admin/nodes/node02",
    "/admin/fabrics",
    "/admin/fabrics/ib-a",
    "/admin/models",
    "/admin/models/org/chat-large",
    "/admin/models/chat-small",
    "/admin/replicas/chat-large-1a2b/logs",
    "/admin/requests",
    "/admin/usage",
    "/admin/playground",
    "/admin/history",
    "/admin/audit",
    "/admin/nothing/here",
]
"""Every page that the fixture `served` can show."""

SEEN = ["color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size"]
_HERE = Path(__file__).parents[2] / "node_modules/axe-core/axe.min.js"
LOOKS = [(400, "light", None), (400, "dark", []), (1600, "light", []), (1600, "dark", SEEN)]
"""Width in pixels, theme, and the rules to look at: all of them, or those that looks decide on, or none. Colours
do not depend on the width, so that two looks see all."""

_RUN = """async (rules) => {
  const only = rules === null ? {} : { runOnly: { type: "rule", values: rules } };
  const { violations } = await axe.run(document, { resultTypes: ["violations"], ...only });
  return violations.map((each) => ({
    what: `${each.impact}: ${each.help} (${each.id})`,
    where: each.nodes.slice(0, 3).map((node) => `${node.target.join(" ")}: ${node.failureSummary ?? ""}`),
  }));
}"""


def axe_path() -> Path | None:
    """Where axe-core's one file is; None when it is nowhere."""
    told = os.environ.get("LLMGW_AXE")
    path = Path(told) if told else _HERE
    return path if path.is_file() else None


def barriers(page: Any, rules: list[str] | None = None) -> list[str]:
    """What axe-core finds on an open page, however serious, with up to three places of each."""
    path = axe_path()
    assert path is not None, "ask axe_path first"
    if not page.evaluate("() => typeof axe !== 'undefined'"):
        page.evaluate(path.read_text())
    found = page.evaluate(_RUN, rules)
    return [f"{each['what']}\n    " + "\n    ".join(each["where"]) for each in found]
