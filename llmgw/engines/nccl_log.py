"""What NCCL says of the network that it uses, read from an engine's output. Pure: text in, facts out.

With `NCCL_DEBUG=INFO` it names the adapters it found, the network it chose, and for every channel that leaves the
node what carries it (NCCL's sources: `src/transport/net_ib`, `net_socket.cc`, `net.cc`, `init.cc`). Lines stand
behind a host's name and pids, often behind an engine's own prefix and its colours:

    node01:984:984 [4] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eno1:10.0.0.11<0>
    node01:984:984 [4] NCCL INFO NET/IB : No device found.
    node01:984:984 [4] NCCL INFO Using network Socket
    node01:984:990 [4] NCCL INFO Channel 00/0 : 3[3] -> 8[0] [send] via NET/IB/0(1)/GDRDMA/Shared
    node01:984:990 [4] NCCL INFO Channel 01/0 : 8[0] -> 3[3] [receive] via NET/Socket/0
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_LINE_CHARS_MAX = 4096
_ADAPTERS_MAX = 64
_INFO = "NCCL INFO "
_CHANNEL = re.compile(r"\[(?:send|receive)\] via NET/([^/\n]{1,64})/")
_USING_NETWORK = re.compile(r"Using network ([A-Za-z0-9_. -]{1,64})")
_IB_DEVICES = re.compile(r"NET/IB : Using((?: \[\d+\][^\s;]+)+)")
_IB_DEVICE = re.compile(r"\[\d+\]([A-Za-z0-9_.-]{1,63}(?::\d{1,3})?)/")
_NO_IB = "NET/IB : No device found"


@dataclass(frozen=True, kw_only=True)
class NcclFacts:
    """What was said so far.

    `channels` are the networks of channels that leave the node (`IB`, `Socket`, a plugin's name), `networks`
    those that were chosen, `adapters` the ports that NCCL found and may use, as `mlx5_0:1`; `no_adapter` is True
    when a rank found none. `line` is the first that says that sockets are used.
    """

    channels: frozenset[str] = frozenset()
    networks: frozenset[str] = frozenset()
    adapters: tuple[str, ...] = ()
    no_adapter: bool = False
    line: str | None = None

    @property
    def fell_back(self) -> bool:
        """True when traffic between nodes goes over TCP: a channel does, or nothing but sockets was chosen."""
        return "Socket" in self.channels or (not self.channels and self.networks == {"Socket"})


@dataclass
class NcclReader:
    """Takes an engine's output piece by piece, and keeps what NCCL says in it."""

    facts: NcclFacts = field(default_factory=NcclFacts)
    _rest: str = ""

    def read(self, text: str) -> None:
        """Take the next piece; its last line may end in the next one."""
        *lines, rest = (self._rest + text).split("\n")
        self._rest = rest[:_LINE_CHARS_MAX]
        for line in lines:
            _, found, said = line[:_LINE_CHARS_MAX].partition(_INFO)
            if found:
                self._take(said.strip())

    def _take(self, said: str) -> None:
        facts = self.facts
        channels, networks, line = facts.channels, facts.networks, facts.line
        adapters, no_adapter = facts.adapters, facts.no_adapter
        if match := _CHANNEL.search(said):
            # A plugin that drives the same adapters has a name of its own: IBext, IBext_v8.
            channels |= {_network(match[1])}
        elif match := _USING_NETWORK.search(said):
            networks |= {_network(match[1])}
        elif match := _IB_DEVICES.search(said):
            adapters = tuple(dict.fromkeys([*adapters, *_IB_DEVICE.findall(match[1])]))[:_ADAPTERS_MAX]
        elif _NO_IB in said:
            no_adapter = True
        else:
            return
        if line is None and match and match.re in (_CHANNEL, _USING_NETWORK) and _network(match[1]) == "Socket":
            line = said
        self.facts = NcclFacts(
            channels=channels, networks=networks, adapters=adapters, no_adapter=no_adapter, line=line
        )


def _network(name: str) -> str:
    name = name.strip()
    return "IB" if name.startswith("IB") else name
