"""The simulated engine's prefix cache: how much of a prompt it has seen before, in vLLM's blocks. Pure."""

from __future__ import annotations

from collections import OrderedDict

BLOCK_TOKENS = 16
"""vLLM's default `--block-size`: only whole blocks are found again."""
BLOCKS_MAX = 16_384


class PrefixCache:
    """Blocks of prompts, each under everything that stands before it; the least recently used go."""

    def __init__(self, blocks_max: int = BLOCKS_MAX) -> None:
        self._blocks_max = blocks_max
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def take(self, prompt: str) -> int:
        """How many tokens of this prompt were there, at most all but the last; now they all are."""
        words = prompt.split()
        chain = hits = 0
        hitting = True
        for start in range(0, len(words) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            chain = hash((chain, *words[start : start + BLOCK_TOKENS]))
            hitting = hitting and chain in self._blocks and start + BLOCK_TOKENS < len(words)
            hits += hitting
            self._blocks[chain] = None
            self._blocks.move_to_end(chain)
        while len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)
        return hits * BLOCK_TOKENS
