"""What one request takes in tokens: asked of the engine, found in its answer as that passes, else estimated."""

from __future__ import annotations

import msgspec

from llmgw.messages.routes import RouteEndpoint
from llmgw.router.fields import Fields
from llmgw.router.meters import Meter, StreamMeter, WholeMeter
from llmgw.router.response_head import CHUNKED, ResponseHead
from llmgw.router.response_parser import ResponseParser
from llmgw.router.stream_options import asking_for_usage, may_be_asked
from llmgw.router.usage_figures import Tokens

# The paths whose streams say their usage only when asked; all others do so by themselves, or never.
ASKED_PATHS = frozenset(("/v1/chat/completions", "/v1/completions"))
BYTES_PER_TOKEN = 4
# A longer body holds images or sound, not so many tokens.
ESTIMATED_PROMPT_MAX = 131_072

NOTHING = Tokens()


class RequestUsage(msgspec.Struct, eq=False):
    """Follows one request over all its tries; `begin` comes with the answer that the client gets. `usage_of`
    makes one. A msgspec struct since each request has one, and that is made without a line of Python."""

    _body_bytes: int
    _options: msgspec.Raw
    """The body's `stream_options`."""
    asks: bool = False
    """The client did not ask for usage, and the engine has to be asked."""
    _takes_out: bool = False
    _refused: bool = False
    """The engine's answer is an error: it costs no tokens."""
    _meter: Meter | None = None

    def asking(self, body: bytes, endpoint: RouteEndpoint) -> bytes:
        """The body for this endpoint: it asks for usage, unless the endpoint is not to be asked."""
        self._takes_out = endpoint.ask_usage
        return asking_for_usage(body, self._options) if self._takes_out else body

    def begin(self, head: ResponseHead, parser: ResponseParser) -> Meter:
        """The answer's head has come: the meter that its body goes through. It may change `head`."""
        meter: Meter
        if head.status >= 400:
            self._refused = True
        if head.is_event_stream:
            meter = StreamMeter(head, parser, takes_out=self._takes_out)
        else:
            meter = WholeMeter(head.framing == CHUNKED)
        self._meter = meter
        return meter

    @property
    def rechunks(self) -> bool:
        """True when the client's side of the answer stands between two chunks, wherever the engine's stands."""
        return self._meter is not None and self._meter.rechunks

    def give_up(self) -> bytes:
        """The stream broke off: what was kept of an event that will never be whole, framed for the client."""
        return self._meter.give_up() if isinstance(self._meter, StreamMeter) else b""

    def tokens(self, broken: bool, reached: bool) -> Tokens:
        """What the request took, when it is over.

        `broken`: the answer did not come to its end. `reached`: an engine had the request, and worked on it.
        """
        meter = self._meter
        if self._refused:
            return NOTHING
        if not broken:
            if meter is None:
                return NOTHING
            found = meter.found()
            if found is not None and (found.completion is not None or not meter.events):
                return found
            return self._estimate(found, meter.events) if meter.events else NOTHING
        if meter is None:
            return self._estimate(None, 0) if reached else NOTHING
        found = meter.found()
        if found is not None and meter.told_all:
            return found
        return self._estimate(found, meter.events)

    def _estimate(self, found: Tokens | None, events: int) -> Tokens:
        prompt = found.prompt if found is not None else None
        if prompt is None:
            prompt = min(self._body_bytes // BYTES_PER_TOKEN, ESTIMATED_PROMPT_MAX)
        said = found.completion if found is not None else None
        cached = found.cached if found is not None else None
        # The first event carries a role and no token.
        return Tokens(prompt, cached, max(said or 0, events - 1, 0), True)


def usage_of(path: str, fields: Fields, body_bytes: int) -> RequestUsage:
    """For a request to this path. `fields` are its body's, of `body_bytes` bytes."""
    options = fields.stream_options
    asks = fields.stream and path in ASKED_PATHS and may_be_asked(options)
    return RequestUsage(body_bytes, options, bool(asks))
