"""The endpoints that one request is sent to: which is next, and whether there may be another (invariant 8).

Pure: time and randomness are arguments.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from llmgw.router.endpoint import Endpoint
from llmgw.router.limits import ATTEMPTS_MAX, DEATHS_MAX
from llmgw.router.table import Model


class Tries(msgspec.Struct, eq=False):
    """What has been tried for one request, each endpoint once. A msgspec struct since each request has one.

    `point` is where the request's conversation stands on the model's ring; `_rand` is uniform in [0, 1).
    """

    _model: Model
    _rand: Callable[[], float]
    point: int | None
    tried: list[Endpoint] = []
    _deaths: int = 0
    refused: bool = False
    """True when another engine could have been asked, and the budget was spent."""

    @property
    def retries(self) -> int:
        """Endpoints that were tried after the first."""
        return len(self.tried) - 1 if self.tried else 0

    def another(self, now: float, *, deaths: int = 0) -> Endpoint | None:
        """The endpoint for the next try; None when there may be none. `deaths`: so many more than are counted."""
        tried = self.tried
        if not tried:
            return self._model.pool.choose(now, tried, self._rand, self.point)
        if self._deaths + deaths >= DEATHS_MAX or len(tried) >= ATTEMPTS_MAX:
            return None
        endpoint = self._model.pool.choose(now, tried, self._rand, self.point)
        if endpoint is not None and not self._model.budget.allows(now):
            self.refused = True
            return None
        return endpoint

    def may_wait(self, now: float) -> bool:
        """When there is not `another`: True if that is only because the endpoints that are left are full."""
        tried = self.tried
        if self._deaths >= DEATHS_MAX or len(tried) >= ATTEMPTS_MAX:
            return False
        if tried and not self._model.budget.allows(now):
            self.refused = True
            return False
        return any(endpoint not in tried for endpoint in self._model.endpoints)

    def route_by(self, model: Model) -> None:
        """The model as a newer table has it."""
        self._model = model

    def begin(self, endpoint: Endpoint, now: float) -> None:
        """It is tried. The first adds to the model's budget, the others are taken from it."""
        budget = self._model.budget
        if self.tried:
            budget.spend(now)
        else:
            budget.request()
        self.tried.append(endpoint)

    def again(self, now: float) -> bool:
        """The same endpoint once more, since its kept connection was closed; False when the budget is spent."""
        if self._model.budget.spend(now):
            return True
        self.refused = True
        return False

    def died(self) -> None:
        """The endpoint that was tried last had the request, which may be what it died of."""
        self._deaths += 1
