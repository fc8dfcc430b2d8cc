"""Turns what a client proves itself with into a `Caller`, by the keys of the route table.

Keys are looked up by their SHA-256 in a dict, and that takes the same time whatever was sent: no byte of what is
sent is compared with a byte of a secret. A dict does compare hashes that fall into one place, but who does not
have a key cannot choose what its wrong guess hashes to, and so learns nothing about any other hash from the time.

Another way to prove oneself (a signed token of an issuer, say) is another branch of `identify`: the rest of the
router knows callers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from llmgw.messages.routes import KeyDemand, KeyShare, RouteTable
from llmgw.router.caller import ANYBODY, Caller
from llmgw.router.errors import ApiError, not_yet_known
from llmgw.router.key_caller import KeyCaller
from llmgw.router.key_errors import no_key, several_keys, wrong_key
from llmgw.router.request import Credentials, Request

CREDENTIAL_BYTES_MAX = 512
"""No key is longer, and what is longer is not hashed."""


class Keys:
    """The keys of the table that this router routes by. `workers`: one of so many routers this one is."""

    def __init__(self, workers: int) -> None:
        self.required = False
        self._any_given = False
        """Somebody has a key, beside the control process."""
        self._known = False
        """There is a table. Before, nobody can be told apart."""
        self._workers = workers
        self._by_hash: dict[bytes, KeyCaller] = {}
        self._by_id: dict[str, KeyCaller] = {}
        self._busy: set[KeyCaller] = set()
        """Those of which there may be something to tell: of ten thousand keys few are in use, and each look at
        all of them would hold up every stream."""
        self._shares: Mapping[str, KeyShare] = {}

    def apply(self, table: RouteTable, now: float) -> None:
        """These keys from now on. What is known of one that stays is kept; one that does not is gone at once."""
        before = self._by_id
        self.required = table.keys_required
        self._known = True
        by_id: dict[str, KeyCaller] = {}
        for route in table.keys if table.keys_required else ():
            caller = before.get(route.id)
            if caller is None or caller.route.hash != route.hash:  # another secret is another key
                share = self._shares.get(route.id)
                caller = KeyCaller(route, self._workers, now, share, self._busy)
                caller.share(share, self._workers, now)
            elif caller.route != route:
                caller.update(route, now)
            by_id[route.id] = caller
        for key_id, caller in before.items():
            if by_id.get(key_id) is not caller:
                caller.gone = True
                self._busy.discard(caller)
        self._by_id = by_id
        self._any_given = any(not caller.route.of_server for caller in by_id.values())
        self._by_hash = {caller.route.hash: caller for caller in by_id.values()}

    def share(self, shares: Mapping[str, KeyShare], workers: int, now: float) -> None:
        """This router's parts of the keys' limits from now on; what is missing is divided by `workers`."""
        for key_id in {*self._shares, *shares} if workers == self._workers else list(self._by_id):
            caller = self._by_id.get(key_id)
            if caller is not None:
                caller.share(shares.get(key_id), workers, now)
        self._shares = shares
        self._workers = workers

    def begin_moves(self) -> None:
        """A control process has connected: it counts anew what it moves between the routers' parts."""
        for caller in self._by_id.values():
            caller.begin_moves()

    def identify(self, credentials: Credentials) -> Caller:
        """The caller who proves itself with this. Raises ApiError (401)."""
        if not self.required:
            return ANYBODY
        given: bytes | None = None
        for name, value in credentials:
            if name == b"authorization":
                scheme, _, value = value.strip(b" \t").partition(b" ")
                if scheme.lower() != b"bearer":
                    continue  # for a proxy before this gateway, perhaps
            value = value.strip(b" \t")
            if not value:
                continue
            if given is not None and value != given:
                raise several_keys()
            given = value
        if given is None:
            raise no_key(self._any_given)
        caller = self._by_hash.get(sha256(given).digest()) if len(given) <= CREDENTIAL_BYTES_MAX else None
        if caller is None:
            raise wrong_key() if self._any_given else no_key(False)
        caller.check_alive()
        return caller

    def caller(self, request: Request) -> Caller:
        """Who sent a request that is whole. Its key was looked at when its head had come, which may be long ago.

        Raises ApiError (401; 503 while there is no table).
        """
        if not self._known:
            raise not_yet_known()
        if request.refusal is not None:
            raise request.refusal
        caller = request.caller
        if caller is not ANYBODY:
            caller.check_alive()
        elif self.required:  # since a moment ago
            caller = self.identify(request.credentials)
        return caller

    def refusal(self, caller_id: str, model: str) -> ApiError | None:
        """What a request of this caller is told that waits for this model, and may not have it any more."""
        if not self.required or not caller_id:
            return None  # who came while no keys were asked for was let in
        caller = self._by_id.get(caller_id)
        if caller is None:
            return wrong_key()
        return None if caller.may_use(model) else caller.not_allowed(model)

    def take_demand(self) -> dict[str, KeyDemand]:
        """What each key with limits had this router do since the last call."""
        told: dict[str, KeyDemand] = {}
        for caller in list(self._busy):
            demand = caller.take_demand() if caller.limited and not caller.gone else None
            if demand is None:
                self._busy.discard(caller)
            else:
                told[caller.id] = demand
        return told
