"""The node's agent.yaml: what the options name, merged into what is there, and nobody's edits lost.

A file of ours says so in its first line, with a checksum of the rest. While that fits, the file is written anew
whenever it would differ. One that a person has edited, or written, is kept as long as it says what the options
say. Where it does not, onboarding stops and shows the difference, and --force-config merges into it: its comments
go, and the file that was there stays beside it.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llmgw.config.agent import AgentConfig
from llmgw.config.errors import ConfigError
from llmgw.config.load import agent_config_of, agent_keys_written
from llmgw.onboarding.errors import OnboardError
from llmgw.onboarding.wish import Wish
from llmgw.release import layout

_HEADER = re.compile(rb"# Made by llmgw onboard-node \(sha256 ([0-9a-f]{16}) of the lines below\)[^\n]*\n")
_HEADER_TEXT = (
    "# Made by llmgw onboard-node (sha256 {digest} of the lines below). Edited, it is yours, and is kept.\n"
)
_DIFF_LINES_MAX = 60


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of agent.yaml. `text` is its new content, None when what is there stays; `config` is what
    rules then; `keeps_old` says that the file there is a person's and is put aside."""

    config: AgentConfig
    text: bytes | None
    keeps_old: bool = False

    @property
    def engine_note(self) -> str | None:
        """What is to be said of a node that can run no real engine, without its name; None of one that can."""
        engines = self.config.engines
        if any(real is not None for real in (engines.llamacpp, engines.vllm, engines.sglang)):
            return None
        can = "only the simulated engine (sim)" if engines.sim.enabled else "no engine at all"
        return (
            f"can run {can}: name the path of a real one on the node with --llamacpp-bin, --vllm-bin or "
            "--sglang-python"
        )


def keys_of(there: bytes | None) -> dict[str, Any]:
    """The keys of the node's file; none of one that is not there, or not good (`plan` says what is wrong)."""
    if there is None:
        return {}
    try:
        return agent_keys_written(there, Path(layout.AGENT_CONFIG))
    except ConfigError:
        return {}


def plan(wish: Wish, there: bytes | None, address: str) -> Plan:
    """Merge the options into the node's file, `there` (None: there is none).

    `address` is where the node is enrolled: it is written unless an interface is named, by options or file.
    Raises OnboardError when a person's file would change, ConfigError when what results is no configuration.
    """
    written: dict[str, Any] = {}
    ours = there is None or _is_ours(there)
    if there is not None:
        try:
            written = agent_keys_written(there, Path(layout.AGENT_CONFIG))
            before: AgentConfig | None = agent_config_of(written)
        except ConfigError as error:
            if not wish.force_config:
                raise OnboardError(
                    f"{wish.node_id} has an {layout.AGENT_CONFIG} that is not good: {error}\n"
                    "Correct it there, or have it written anew with --force-config (the old one stays beside it)."
                ) from None
            written, before, ours = {}, None, False
    else:
        before = None
    merged = _merged(wish, written, address, ours)
    config = agent_config_of(merged)
    if before is not None and config == before:
        # The same meaning is the same file, however it is written.
        return Plan(config, None)
    text = render(config)
    if not ours and there is not None and not wish.force_config:
        raise OnboardError(
            f"{layout.AGENT_CONFIG} on {wish.node_id} was edited by hand, and the options ask for something "
            "else:\n"
            f"{_difference(before, config)}\n"
            "Edit it there to say the same, or leave the options out, or have them merged in with "
            "--force-config (its comments go; the file that is there stays as agent.yaml.before). Nothing was "
            "changed."
        )
    return Plan(config, text, keeps_old=not ours and there is not None)


def render(config: AgentConfig) -> bytes:
    """A configuration as a file of ours: the keys that were set, and the line that says whose it is."""
    body = _yaml(config).encode()
    return _HEADER_TEXT.format(digest=_digest(body)).encode() + body


def _is_ours(content: bytes) -> bool:
    found = _HEADER.match(content)
    return found is not None and found[1].decode() == _digest(content[found.end() :])


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


def _merged(wish: Wish, written: dict[str, Any], address: str, ours: bool) -> dict[str, Any]:
    keys = wish.agent_keys()
    if not ours and "node_id" not in written and not wish.force:
        del keys["node_id"]  # the host name, which it was seen to have
    merged = _laid_over(written, keys)
    if wish.mgmt_if is not None and wish.mgmt_addr is None:
        merged.pop("mgmt_addr", None)  # it would rule over the interface
    if wish.mgmt_addr is not None and wish.mgmt_if is None:
        merged.pop("mgmt_interface", None)
    # What a person has left to its default is left to it.
    if merged.get("mgmt_addr") is not None or (ours and merged.get("mgmt_interface") is None):
        merged["mgmt_addr"] = address
    if "server" not in merged:
        raise OnboardError(
            f"{wish.node_id} has no configuration yet: say with --server which server its agent dials, for "
            "example --server https://gateway.internal:8443."
        )
    engines = dict(merged.get("engines") or {})
    real = {"llamacpp", "vllm", "sglang"} & {name for name, value in engines.items() if value is not None}
    if not real and "sim" not in engines and ours:
        engines["sim"] = {"enabled": True}
    elif real and ours and wish.names_engines:
        engines.pop("sim", None)  # it stood in while there was nothing else
    if engines:
        merged["engines"] = engines
    if "fabrics" in keys:
        # What a person has said of a fabric beyond its adapters, such as its rate, stays said.
        known = {
            str(one.get("name")): one
            for one in written.get("fabrics") or []
            if isinstance(one, dict) and "name" in one
        }
        merged["fabrics"] = [{**known.get(one["name"], {}), **one} for one in keys["fabrics"]]
    return merged


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _laid_over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def _yaml(config: AgentConfig) -> str:
    values = config.model_dump(mode="json", exclude_unset=True)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=110)


def _difference(before: AgentConfig | None, after: AgentConfig) -> str:
    old = _yaml(before).splitlines() if before is not None else []
    lines = list(difflib.unified_diff(old, _yaml(after).splitlines(), "there", "asked for", n=1, lineterm=""))
    shown = lines[:_DIFF_LINES_MAX]
    return "\n".join([*shown, f"and {len(lines) - len(shown)} more lines"] if len(lines) > len(shown) else shown)
