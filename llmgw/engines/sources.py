"""What a model's source is to engines that load folders and names of a hub, and why one cannot be loaded."""

from __future__ import annotations

import os.path
import re

from llmgw.engines.base import LaunchContext
from llmgw.messages.agent import ShardSpec

# Each part at most 96 characters of letters, digits, `-`, `_` and `.` (huggingface_hub's validate_repo_id).
_HUB_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,95})?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def located(spec: ShardSpec, context: LaunchContext) -> str:
    """What the engine is told to load: the file that the agent fetched, an absolute path, or the name as it is.

    A relative path is seen from the agent's folder, not from the shard's own, in which engines run.
    """
    source = context.model_path or spec.source
    return os.path.abspath(source) if source.startswith(("./", "../")) else source


def source_problems(spec: ShardSpec, context: LaunchContext) -> list[str]:
    """Sentences for a source that is neither a path, nor a fetched GGUF file, nor a model's name in a hub."""
    source = spec.source
    where = f"source {source!r} of model {spec.model!r}"
    if not source:
        return [f"model {spec.model!r} has no source to load; set source to org/name or a path"]
    if "\0" in source or source != source.strip():
        return [f"{where} begins or ends with a blank, or holds a NUL byte; correct it"]
    if context.model_path is not None:
        if context.model_path.lower().endswith(".gguf"):
            return []
        return [
            f"{where} is one file, and {spec.engine} loads a folder of them; give org/name, or the path of the "
            "folder on each node"
        ]
    if _SCHEME.match(source):
        return []  # `s3://…` and its like are the engine's to open
    if source.startswith("~"):
        return [f"{where} begins with ~, which nobody expands here; give an absolute path"]
    if source.startswith(("/", "./", "../")):
        return []
    if source.startswith("-") or not _HUB_NAME.fullmatch(source):
        return [
            f"{where} is neither a path nor the name of a model in a hub; write org/name, or a path that begins "
            "with / or ./"
        ]
    return []


def is_gguf(spec: ShardSpec, context: LaunchContext) -> bool:
    """True when what would be loaded is llama.cpp's own format, by its name."""
    names = (spec.source, context.model_path or "")
    # `https://…/file.gguf?download=true`, `org/name-GGUF`, `org/name:Q4_K_M`
    return any(re.search(r"\.gguf([?#].*)?$|-gguf$|:i?q\d\w*$", name, re.IGNORECASE) for name in names)
