"""A model of engines with prefix caches under conversations: virtual time, real routers' choices.

Engines keep blocks of tokens, the least recently used going first, as vLLM and SGLang do; the leading blocks of a
prompt that are there need not be read again. Requests are divided by the product's own Pool, Ring and Endpoint.
"""

from __future__ import annotations

import heapq
import json
import math
import random
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from llmgw.messages.routes import RouteEndpoint
from llmgw.router.affinity import Ring, conversation_point
from llmgw.router.choice import Pool, share_capacity
from llmgw.router.endpoint import Endpoint

BLOCK_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How many engines and routers, how large their caches are, and how people talk."""

    engines: int = 8
    routers: int = 2
    affinity: bool = True
    cache_tokens: int = 400_000
    """Of one engine."""
    conversations: int = 600
    """That are held at a time; one that ends is followed by a new one."""
    requests: int = 8_000
    system_tokens: int = 2_000
    """Shared by all conversations."""
    question_tokens: tuple[int, int] = (30, 400)
    answer_tokens: tuple[int, int] = (80, 500)
    turns: float = 6.0
    """Mean."""
    thinking_s: float = 20.0
    """Mean, between an answer and the next question."""
    prefill_tokens_per_s: float = 10_000.0
    decode_tokens_per_s: float = 60.0
    seed: int = 1


@dataclass
class Outcome:
    """What one run showed. Tokens are of prompts; the first tenth of the requests warms up and is not counted."""

    known: int = 0
    """Of conversations' own, behind the shared system prompt: what some engine has read or said before."""
    known_cached: int = 0
    tokens: int = 0
    cached: int = 0
    first_token_s: list[float] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    """By engine."""
    bound_used: float = 0.0
    """Of one router, the most that an endpoint had outstanding, of what SHARE_MAX allows it; 1 is all of it."""

    @property
    def spread(self) -> float:
        """The busiest engine's requests, against the mean."""
        return max(self.requests) * len(self.requests) / sum(self.requests)


class Cache:
    """Blocks of tokens, the least recently used going first."""

    def __init__(self, tokens: int) -> None:
        self._room = tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[Hashable, None] = OrderedDict()

    def leading(self, blocks: list[Hashable]) -> int:
        """How many of a prompt's leading blocks are there."""
        for count, block in enumerate(blocks):
            if block not in self._blocks:
                return count
        return len(blocks)

    def keep(self, blocks: list[Hashable]) -> None:
        """These were just used. A prefix outlives what follows it, which is of no use without it."""
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._room:
            self._blocks.popitem(last=False)


@dataclass
class Conversation:
    """One, as it grows."""

    number: int
    turns: int
    tokens: int
    messages: list[dict[str, str]]

    def blocks(self, system_tokens: int) -> list[Hashable]:
        """The prompt's whole blocks, by what they hold: the first ones are everybody's."""
        shared = system_tokens // BLOCK_TOKENS
        whole = (system_tokens + self.tokens) // BLOCK_TOKENS
        return [index if index < shared else (self.number, index) for index in range(whole)]


def simulate(setup: Setup, share_max: float) -> Outcome:
    """Run it to its end. `share_max` is what `Outcome.bound_used` is measured against."""
    return _Run(setup, share_max).run()


class _Run:
    def __init__(self, setup: Setup, share_max: float) -> None:
        self._setup = setup
        self._share_max = share_max
        self._random = random.Random(setup.seed)
        self._routers = [_pool(setup) for _ in range(setup.routers)]
        self._caches = [Cache(setup.cache_tokens) for _ in range(setup.engines)]
        self._outcome = Outcome(requests=[0] * setup.engines)
        self._started = 0
        self._events: list[tuple[float, int, Conversation, Endpoint | None]] = []
        self._order = iter(range(10**9))
        self._system = {"role": "system", "content": "You are a helpful assistant. " * (setup.system_tokens // 6)}

    def run(self) -> Outcome:
        for conversation in self._conversations():
            if len(self._events) == self._setup.conversations:
                break
            self._at(self._random.random() * self._setup.thinking_s, conversation, None)
        fresh = self._conversations(self._setup.conversations)
        while self._started < self._setup.requests:
            now, _, conversation, endpoint = heapq.heappop(self._events)
            if endpoint is None:
                self._ask(now, conversation)
                continue
            endpoint.end(False)
            if len(conversation.messages) // 2 >= conversation.turns:
                conversation = next(fresh)
            self._at(now + self._random.expovariate(1 / self._setup.thinking_s), conversation, None)
        return self._outcome

    def _conversations(self, number: int = 0) -> Iterator[Conversation]:
        while True:
            turns = 1 + int(self._random.expovariate(1 / self._setup.turns))
            yield Conversation(number, turns, 0, [self._system])
            number += 1

    def _at(self, when: float, conversation: Conversation, endpoint: Endpoint | None) -> None:
        heapq.heappush(self._events, (when, next(self._order), conversation, endpoint))

    def _ask(self, now: float, conversation: Conversation) -> None:
        setup, rand = self._setup, self._random
        known = conversation.tokens
        conversation.tokens += rand.randint(*setup.question_tokens)
        question = f"question {len(conversation.messages)} of {conversation.number}"
        conversation.messages.append({"role": "user", "content": question})
        pool = rand.choice(self._routers)
        point = None
        if pool.ring is not None:
            body = json.dumps(conversation.messages).encode()
            point = conversation_point(session=b"", user=b"", messages=body, prompt=b"")
        endpoint = pool.choose(now, [], rand.random, point)
        assert endpoint is not None
        endpoint.begin(now)
        if setup.affinity:
            self._see_bound(pool, endpoint)
        index = pool.endpoints.index(endpoint)
        blocks = conversation.blocks(setup.system_tokens)
        cached = self._caches[index].leading(blocks) * BLOCK_TOKENS
        self._caches[index].keep(blocks)
        prompt = setup.system_tokens + conversation.tokens
        first_s = (prompt - cached) / setup.prefill_tokens_per_s
        answer = rand.randint(*setup.answer_tokens)
        conversation.tokens += answer
        conversation.messages.append({"role": "assistant", "content": "an answer"})
        self._caches[index].keep(conversation.blocks(setup.system_tokens))
        self._at(now + first_s + answer / setup.decode_tokens_per_s, conversation, endpoint)
        self._started += 1
        if self._started > setup.requests // 10:
            self._count(index, prompt, known, cached, first_s)

    def _count(self, index: int, prompt: int, known: int, cached: int, first_s: float) -> None:
        outcome, shared = self._outcome, self._setup.system_tokens
        outcome.requests[index] += 1
        outcome.tokens += prompt
        outcome.cached += cached
        outcome.known += known
        outcome.known_cached += max(0, cached - shared)
        outcome.first_token_s.append(first_s)

    def _see_bound(self, pool: Pool, endpoint: Endpoint) -> None:
        total = sum(each.outstanding for each in pool.endpoints)
        allowed = math.ceil(self._share_max * total / len(pool.endpoints))
        self._outcome.bound_used = max(self._outcome.bound_used, endpoint.outstanding / allowed)


def _pool(setup: Setup) -> Pool:
    endpoints = [
        Endpoint(RouteEndpoint(id=f"replica-{index}", host="10.0.0.1", port=8000), idle_limit_s=4.0)
        for index in range(setup.engines)
    ]
    share_capacity(endpoints)
    return Pool(endpoints, Ring(endpoints) if setup.affinity else None)
