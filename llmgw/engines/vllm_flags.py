"""vLLM's flags as its own parser reads them, and those that a profile may not give."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw.engines.command_line import Reading, value_of
from llmgw.engines.networks import REFUSED_NETWORK_ENV

# Its parser is argparse with underscores read as dashes; `--compilation-config.mode 3` sets a part of a flag that
# takes JSON.
READING = Reading(
    underscores=True,
    abbreviations=True,
    whole=frozenset({"--data-parallel-size", "-dp"}),
    equals=True,
    dotted=True,
)

TENSOR = ("--tensor-parallel-size", "-tp")
PIPELINE = ("--pipeline-parallel-size", "-pp")
DATA = ("--data-parallel-size", "-dp")

_ADDRESS = "the agent chooses where an engine listens"
_REPLICA = "the control plane decides a replica's shape and ranks"
_DEVICE = "the agent chooses a shard's GPUs"
_NAME = "the model's name and aliases are the catalog's"
_MODEL = "the model's source says what is loaded"
_KEY = "the agent gives the engine a key of its own, by its environment"
_TLS = "the gateway speaks plain HTTP to engines"
_OTHER_SERVER = "it would open a server that the agent knows nothing of"
_FILE = "a file could set what a profile may not; give the flags themselves"

REFUSED_ARGS = {
    **dict.fromkeys(["--host", "--port", "--uds", "--root-path"], _ADDRESS),
    **dict.fromkeys(["--nnodes", "-n", "--node-rank", "-r", "--headless"], _REPLICA),
    **dict.fromkeys(["--master-addr", "--master-port"], _REPLICA),
    "--distributed-executor-backend": "engines.vllm.launch_mode in agent.yaml decides how nodes work together",
    **dict.fromkeys(["--data-parallel-address", "-dpa", "--data-parallel-rpc-port", "-dpp"], _REPLICA),
    **dict.fromkeys(["--data-parallel-rank", "-dpn", "--data-parallel-start-rank", "-dpr"], _REPLICA),
    **dict.fromkeys(["--data-parallel-size-local", "-dpl", "--data-parallel-backend", "-dpb"], _REPLICA),
    **dict.fromkeys(["--data-parallel-external-lb", "-dpe", "--data-parallel-hybrid-lb", "-dph"], _REPLICA),
    **dict.fromkeys(["--no-data-parallel-external-lb", "--no-data-parallel-hybrid-lb"], _REPLICA),
    **dict.fromkeys(["--data-parallel-multi-port-external-lb", "-dpm"], _REPLICA),
    "--device-ids": _DEVICE,
    "--served-model-name": _NAME,
    "--model": _MODEL,
    "--api-key": _KEY,
    "--hf-token": "command lines are read by everyone on the node; set HF_TOKEN in the agent's environment",
    **dict.fromkeys(["--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs"], _TLS),
    "--ssl-ciphers": _TLS,
    **dict.fromkeys(["--grpc", "--grpc-port", "--data-parallel-supervisor-port"], _OTHER_SERVER),
    "--config": _FILE,
    "--task": "vLLM knows it no longer, and the model's task says it (--runner and --convert say more)",
}
"""Flags by every spelling, and why no profile gives them."""

REFUSED_ENV = {
    **REFUSED_NETWORK_ENV,
    **dict.fromkeys(["VLLM_HOST_IP", "VLLM_PORT", "VLLM_LOOPBACK_IP"], _ADDRESS),
    **dict.fromkeys(["VLLM_DP_RANK", "VLLM_DP_RANK_LOCAL", "VLLM_DP_SIZE"], _REPLICA),
    **dict.fromkeys(["VLLM_DP_MASTER_IP", "VLLM_DP_MASTER_PORT"], _REPLICA),
    **dict.fromkeys(["RAY_ADDRESS", "RAY_TMPDIR", "VLLM_CONFIG_ROOT"], _REPLICA),
    "VLLM_API_KEY": _KEY,
}
"""Variables, the same."""

# vLLM reads `4k` as 4000 and `4K` as 4096, SGLang and llama.cpp differently again.
SIZES = (
    *("--max-model-len", "--max-num-batched-tokens", "--max-num-seqs", "--max-num-queued-reqs"),
    *(
        "--max-num-queued-tokens",
        "--max-num-scheduled-tokens",
        "--max-num-active-seqs",
        "--kv-cache-memory-bytes",
    ),
)

_QUANTIZATION = ("--quantization", "-q")
_LOAD_FORMAT = ("--load-format",)


def foreign_flags(args: Sequence[str]) -> list[str]:
    """Sentences for values that name another engine's format, and for data parallelism's own rules."""
    sentences = []
    for spellings in (_QUANTIZATION, _LOAD_FORMAT):
        value = value_of(args, spellings, READING)
        if value is not None and is_gguf_type(value):
            sentences.append(
                f"args has {spellings[0]} {value}, which is llama.cpp's format, and vLLM is given none of it "
                "here; run the file with engine: llamacpp, or name a model in safetensors"
            )
    return sentences


def is_gguf_type(value: str) -> bool:
    """True for `gguf`, `Q4_K_M`, `iq3_xxs`."""
    lower = value.lower()
    return lower == "gguf" or lower.removeprefix("i").startswith(tuple(f"q{digit}" for digit in "12345678"))


def dev_mode_warnings(env: dict[str, str]) -> list[str]:
    """Sentences for what opens doors that the engine's key does not lock."""
    if env.get("VLLM_SERVER_DEV_MODE", "0") == "0":
        return []
    return [
        "env sets VLLM_SERVER_DEV_MODE, which opens /sleep, /collective_rpc and others to everyone who reaches "
        "the node's address, with or without the engine's key"
    ]


def data_parallel_problems(args: Sequence[str], nodes: int) -> list[str]:
    """Over several nodes data parallelism needs ranks and ports of its own, which are not handed out here."""
    size = value_of(args, DATA, READING)
    if nodes == 1 or size in (None, "1"):
        return []
    return [
        f"args has {DATA[0]} {size}, and replicas of several nodes are cut by tensor_parallel and "
        "pipeline_parallel only; run more replicas instead"
    ]
