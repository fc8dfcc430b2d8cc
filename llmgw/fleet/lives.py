"""Which life of a node speaks (invariant 10). Pure.

A registration carries (boot id, process instance, counter). Lower counters are of an older message, a later
instance of the same boot supersedes, and another boot while the first still speaks is a cloned machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmgw.messages.agent import Register

BOOTS_KEPT_MAX = 8
"""Of one node. A message that is delayed over more reboots than this is not worth knowing."""


@dataclass(frozen=True, slots=True)
class Life:
    """The life that a node's current session belongs to."""

    boot_id: str
    instance: str
    instance_started_at: float
    counter: int

    @classmethod
    def of(cls, message: Register) -> Life:
        """The life that a registration speaks for."""
        return cls(message.boot_id, message.instance, message.instance_started_at, message.counter)


def refuse_life(current: Life | None, message: Register, *, still_speaks: bool) -> str | None:
    """A sentence that says why the registration is refused, or None when it supersedes the current life.

    `still_speaks` is True while the current life was heard recently enough not to be lost.
    """
    if current is None:
        return None
    new = Life.of(message)
    if new.boot_id != current.boot_id:
        if still_speaks:
            return (
                f"another machine that calls itself {message.node_id} still speaks (boot {current.boot_id[:8]}, "
                f"this one is boot {new.boot_id[:8]}); a clone needs a host name and a certificate of its own"
            )
        return None
    if new.instance == current.instance:
        if new.counter <= current.counter:
            return (
                f"registration {new.counter} of {message.node_id} is older than {current.counter}, already taken"
            )
        return None
    if new.instance_started_at <= current.instance_started_at:
        return f"a later agent process of {message.node_id} has registered; this one is superseded"
    return None


class Lives:
    """Of each node: the life that its session belongs to, and the last life of each earlier boot.

    The earlier ones tell a delayed message of a boot that has been superseded from a machine that is back.
    """

    def __init__(self, known: Mapping[str, Life] | None = None) -> None:
        """`known`: node id → the life that registered last, as the store kept it."""
        self._by_boot: dict[str, dict[str, Life]] = {
            node_id: {life.boot_id: life} for node_id, life in (known or {}).items()
        }

    def current(self, node_id: str) -> Life | None:
        """The life that registered last."""
        boots = self._by_boot.get(node_id)
        return next(reversed(boots.values())) if boots else None

    def refusal(self, message: Register, *, still_speaks: bool) -> str | None:
        """A sentence that says why the registration is refused, or None."""
        earlier = self._by_boot.get(message.node_id, {}).get(message.boot_id)
        return refuse_life(self.current(message.node_id), message, still_speaks=still_speaks) or (
            refuse_life(earlier, message, still_speaks=False)
        )

    def take(self, message: Register) -> Life:
        """The registration was taken: its life is the node's current one."""
        boots = self._by_boot.setdefault(message.node_id, {})
        boots.pop(message.boot_id, None)
        boots[message.boot_id] = life = Life.of(message)
        while len(boots) > BOOTS_KEPT_MAX:
            del boots[next(iter(boots))]
        return life
