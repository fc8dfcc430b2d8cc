"""What the operator asked for, as typed and checked before anybody is bothered with it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from llmgw.config.agent import FabricDeclaration
from llmgw.messages.agent import NODE_ID_PATTERN
from llmgw.onboarding.errors import OnboardError

_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,14}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One node, as the options say it. None is an option that was not given."""

    node_id: str
    addr: str
    """Where ssh goes: an address, or a host of ssh's configuration."""
    server: str | None = None
    fabrics: tuple[FabricDeclaration, ...] = ()
    mgmt_addr: str | None = None
    mgmt_if: str | None = None
    llamacpp_bin: str | None = None
    vllm_bin: str | None = None
    sglang_python: str | None = None
    nvidia_smi: str | None = None
    ib_root: str | None = None
    pki: Path = field(default_factory=lambda: Path("pki"))
    binary: Path | None = None
    release_key: Path | None = None
    force: bool = False
    force_config: bool = False

    @property
    def names_engines(self) -> bool:
        """Whether the path of an engine was given."""
        return any((self.llamacpp_bin, self.vllm_bin, self.sglang_python))

    def check(self) -> None:
        """Raises OnboardError for what no node could be onboarded with."""
        if not re.fullmatch(NODE_ID_PATTERN, self.node_id):
            raise OnboardError(
                f"--node {self.node_id!r} is not a node id; it is the host name: lower-case letters, digits, '-' "
                "and '.', beginning and ending with a letter or digit, at most 63."
            )
        if self.mgmt_addr is not None and not is_address(self.mgmt_addr):
            raise OnboardError(
                f"--mgmt-addr {self.mgmt_addr!r} is not an IP address; write for example 10.0.0.11."
            )
        if self.mgmt_if is not None and not _INTERFACE.fullmatch(self.mgmt_if):
            raise OnboardError(
                f"--mgmt-if {self.mgmt_if!r} is not the name of a network interface, such as eno1."
            )
        named = [
            ("--llamacpp-bin", self.llamacpp_bin),
            ("--vllm-bin", self.vllm_bin),
            ("--sglang-python", self.sglang_python),
            ("--nvidia-smi", self.nvidia_smi),
            ("--ib-root", self.ib_root),
        ]
        for option, value in named:
            # The agent's PATH is systemd's, not the operator's: a bare name there is a guess.
            if value is not None and not (value.startswith("/") and value.isprintable()):
                raise OnboardError(f"{option} {value!r} is not a path from / on the node; write the whole path.")

    def agent_keys(self) -> dict[str, Any]:
        """The keys of agent.yaml that the options name, the node id always among them."""
        keys: dict[str, Any] = {"node_id": self.node_id}
        if self.server is not None:
            keys["server"] = self.server
        if self.mgmt_addr is not None:
            keys["mgmt_addr"] = self.mgmt_addr
        if self.mgmt_if is not None:
            keys["mgmt_interface"] = self.mgmt_if
        if self.fabrics:
            keys["fabrics"] = [{"name": one.name, "hcas": list(one.hcas)} for one in self.fabrics]
        discovery = {"nvidia_smi": self.nvidia_smi, "ib_root": self.ib_root}
        if any(discovery.values()):
            keys["discovery"] = {key: value for key, value in discovery.items() if value is not None}
        engines: dict[str, Any] = {}
        if self.llamacpp_bin is not None:
            engines["llamacpp"] = {"bin": self.llamacpp_bin}
        if self.vllm_bin is not None:
            engines["vllm"] = {"bin": self.vllm_bin}
        if self.sglang_python is not None:
            engines["sglang"] = {"python": self.sglang_python}
        if engines:
            keys["engines"] = engines
        return keys


def read_fabric(text: str) -> FabricDeclaration:
    """`NAME` or `NAME:hca1,hca2`; without adapters mlx5_0 and mlx5_1. Raises OnboardError."""
    name, colon, adapters = text.partition(":")
    given: dict[str, Any] = {"name": name}
    if colon:
        given["hcas"] = [adapter.strip() for adapter in adapters.split(",")]
    try:
        return FabricDeclaration.model_validate(given)
    except ValidationError as error:
        why = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise OnboardError(
            f"--fabric {text!r}: {why}. Write NAME, or NAME:hca1,hca2 such as ib-a:mlx5_0,mlx5_1."
        ) from None


def is_address(text: str) -> bool:
    """Whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
