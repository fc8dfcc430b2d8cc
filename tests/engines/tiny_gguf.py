"""Writes a tiny GGUF model: llama architecture, random weights, a tokenizer of bytes and a few words. 0.3 MB.

It speaks words and no sense. Needs the packages `gguf` and `numpy`.
"""

from __future__ import annotations

import sys
from pathlib import Path

WORDS = [
    "the", "a", "of", "and", "in", "to", "is", "it", "on", "at", "by", "we", "you", "they", "this", "that",
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "red", "green", "blue",
    "white", "black", "north", "south", "east", "west", "sun", "moon", "star", "rain", "snow", "wind", "sea",
    "hill", "road", "house", "door", "tree", "leaf",
]  # fmt: skip
CONTEXT = 2048
WIDTH = 64
HEADS = 4
LAYERS = 2
FEED_FORWARD = 128

# SentencePiece's kinds of token, as `gguf.TokenType` numbers them.
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


def write_tiny_gguf(path: Path) -> None:
    """Write the model. The same bytes each time for the same version of `gguf`.

    The first dimension of the embedding is kept constant through all layers, so that the output layer can use
    it as a bias: words are likely, single bytes and control tokens are not. Answers are then always readable
    UTF-8, whatever the random weights say.
    """
    import gguf
    import numpy

    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256]
    scores = [0.0] * len(tokens)
    for rank, word in enumerate(WORDS):
        tokens.append(f"\u2581{word}".encode())
        kinds.append(_NORMAL)
        scores.append(-float(rank))

    random = numpy.random.default_rng(7)

    def matrix(rows: int, columns: int) -> numpy.ndarray:
        return (random.standard_normal((rows, columns)) * 0.05).astype(numpy.float32)

    def into_residual(columns: int) -> numpy.ndarray:
        weights = matrix(WIDTH, columns)
        weights[0] = 0.0
        return weights

    embedding = matrix(len(tokens), WIDTH)
    embedding[:, 0] = 1.0
    output = matrix(len(tokens), WIDTH) * 20
    output[:, 0] = [4.0 if kind == _NORMAL else -4.0 for kind in kinds]

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", numpy.ones(WIDTH, dtype=numpy.float32))
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}.{norm}.weight", numpy.ones(WIDTH, dtype=numpy.float32))
        for name in ("attn_q", "attn_k", "attn_v"):
            writer.add_tensor(f"{block}.{name}.weight", matrix(WIDTH, WIDTH))
        writer.add_tensor(f"{block}.attn_output.weight", into_residual(WIDTH))
        writer.add_tensor(f"{block}.ffn_gate.weight", matrix(FEED_FORWARD, WIDTH))
        writer.add_tensor(f"{block}.ffn_up.weight", matrix(FEED_FORWARD, WIDTH))
        writer.add_tensor(f"{block}.ffn_down.weight", into_residual(FEED_FORWARD))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write_tiny_gguf(Path(sys.argv[1]))
