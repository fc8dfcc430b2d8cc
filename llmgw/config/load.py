"""The two configuration files, read into their models. What is wrong comes out as sentences, one a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from llmgw.config.agent import AgentConfig
from llmgw.config.base import Model
from llmgw.config.catalog import Catalog
from llmgw.config.errors import ConfigError
from llmgw.config.overrides import apply_overrides
from llmgw.config.schema import Path as KeyPath
from llmgw.config.schema import Shape, shape_at
from llmgw.config.sentences import complaints, dotted, shown, unknown_key
from llmgw.config.server import ServerConfig
from llmgw.config.yaml_lines import BYTES_MAX, Node, YamlProblem, read_yaml

SERVER_PREFIX = "LLMGW_SERVER__"
AGENT_PREFIX = "LLMGW_AGENT__"
SENTENCES_MAX = 20
SENTENCE_CHARS_MAX = 800

Config = TypeVar("Config", bound=Model)


@dataclass(frozen=True)
class CatalogFile:
    """A catalog as a file has it. `ignored` names the server's own keys beside it, which are not read."""

    catalog: Catalog
    ignored: tuple[str, ...] = ()


def first_there(paths: Iterable[Path]) -> Path | None:
    """The first of some default places that has a file, or may have one that this user may not look at.

    Reading that one says so then, where the next, or none, would be another configuration. The folder that this
    user stands in, and may not enter, has none for them.
    """
    for path in paths:
        try:
            if path.exists():
                return path
        except PermissionError:
            if path.is_absolute():
                return path
    return None


def load_server_config(path: Path | None, environ: Mapping[str, str]) -> ServerConfig:
    """`server.yaml` at `path` (None: defaults only) with the overrides in `environ`.

    Raises ConfigError, whose text is one sentence a line.
    """
    return _load(ServerConfig, path, environ, SERVER_PREFIX)


def load_agent_config(path: Path | None, environ: Mapping[str, str]) -> AgentConfig:
    """`agent.yaml` at `path` (None: overrides and defaults only) with the overrides in `environ`.

    Raises ConfigError, whose text is one sentence a line.
    """
    return _load(AgentConfig, path, environ, AGENT_PREFIX)


def load_catalog_file(path: Path, data: bytes | None = None) -> CatalogFile:
    """The `models:` of a file that holds nothing else, or of a whole `server.yaml` (its other keys are not read).

    `data` is what has been read already, such as standard input; `path` is what errors call it then.
    Raises ConfigError, whose text is one sentence a line. A file that does not say `models:` is refused: taken
    for an empty catalog it would stop everything. `models: []` says it.
    """
    root = _read(path, "") if data is None else _parsed(data, path)
    assert isinstance(root.value, dict)
    problems = [
        (child.line, f"{path} line {child.line}: {key}: {unknown_key(ServerConfig, (key,))}")
        for key, child in root.value.items()
        if key not in ServerConfig.model_fields
    ]
    ignored = tuple(key for key in root.value if key in ServerConfig.model_fields and key != "models")
    models = root.value.get("models")
    if not problems and (models is None or models.empty or models.value is None):
        where = f"{path} line {models.line}" if models is not None else str(path)
        word = "missing" if models is None else "empty"
        raise ConfigError(
            f"{where}: models: {word}; an empty catalog stops everything: write the models below it, or "
            "`models: []` if that is meant"
        )
    only = replace(root, value={"models": models} if models is not None else {})
    catalog = _validated(Catalog, _without_empty_groups(Catalog, only, problems, path), only, path, problems)
    return CatalogFile(catalog, ignored)


def catalog_of(models: object) -> Catalog:
    """Data that was sent (lists, dicts, text, numbers) as a catalog. Raises ConfigError, one sentence a line."""
    try:
        return Catalog.model_validate({"models": models})
    except ValidationError as error:
        sentences = [f"{dotted(item.path) or 'models'}: {item.sentence}" for item in complaints(Catalog, error)]
        raise ConfigError(_told([(0, sentence) for sentence in sentences])) from None


def agent_keys_written(data: bytes, path: Path) -> dict[str, Any]:
    """The keys that the text of an `agent.yaml` writes, as plain values: text, None, lists and dicts.

    `path` is what errors call it. Raises ConfigError, one sentence a line; the values are not judged.
    """
    problems: list[tuple[int, str]] = []
    values = _without_empty_groups(AgentConfig, _parsed(data, path), problems, path)
    if problems:
        raise ConfigError(_told(problems))
    return values


def agent_config_of(values: Mapping[str, Any]) -> AgentConfig:
    """Keys and values as a node's configuration. Raises ConfigError, one sentence a line."""
    try:
        return AgentConfig.model_validate(dict(values))
    except ValidationError as error:
        sentences = [f"{dotted(item.path)}: {item.sentence}" for item in complaints(AgentConfig, error)]
        raise ConfigError(_told([(0, sentence) for sentence in sentences])) from None


def _load(model: type[Config], path: Path | None, environ: Mapping[str, str], prefix: str) -> Config:
    root = _read(path, "with --config") if path is not None else None
    problems: list[tuple[int, str]] = []
    data: dict[str, Any] = {}
    if root is not None:
        data = _without_empty_groups(model, root, problems, path)
    origins, refused = apply_overrides(model, data, environ, prefix)
    problems += [(0, sentence) for sentence in refused]
    return _validated(model, data, root, path, problems, origins, prefix)


def _validated(
    model: type[Config],
    data: dict[str, Any],
    root: Node | None,
    path: Path | None,
    problems: list[tuple[int, str]],
    origins: dict[KeyPath, str] | None = None,
    prefix: str = "",
) -> Config:
    config: Config | None = None
    try:
        config = model.model_validate(data)
    except ValidationError as error:
        for complaint in complaints(model, error):
            line, place = _place(complaint.path, root, origins or {}, path, prefix)
            key = dotted(complaint.path)
            problems.append(
                (line, f"{place}: {key}: {complaint.sentence}" if key else f"{place}: {complaint.sentence}")
            )
    if problems or config is None:
        raise ConfigError(_told(problems))
    return config


def _told(problems: list[tuple[int, str]]) -> str:
    sentences = [_one_line(sentence) for _, sentence in sorted(problems, key=lambda problem: problem[0])]
    if len(sentences) > SENTENCES_MAX:
        more = len(sentences) - SENTENCES_MAX
        sentences = [*sentences[:SENTENCES_MAX], f"and {more} more; mend these first"]
    return "\n".join(sentences)


def _one_line(sentence: str) -> str:
    """A key or value may be anything that YAML can write: newlines are shown as such, and length is bounded."""
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in sentence)
    return text if len(text) <= SENTENCE_CHARS_MAX else text[: SENTENCE_CHARS_MAX - 1] + "…"


def _read(path: Path, hint: str) -> Node:
    """The file's root, which is a mapping. Raises ConfigError; `hint` says how the path is given."""
    try:
        with path.open("rb") as file:
            # Not more than the limit, whatever the file says of its size: it may be a pipe or a device.
            data = file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        advice = f"; give its path {hint}" if hint else ""
        raise ConfigError(f"{path}: there is no such file{advice}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; give the path of a file in it {hint}".rstrip()) from None
    except PermissionError:
        raise ConfigError(f"{path}: this user may not read it; change its owner or mode") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return _parsed(data, path)


def _parsed(data: bytes, path: Path) -> Node:
    try:
        root = read_yaml(data)
    except YamlProblem as problem:
        place = f"{path} line {problem.line}" if problem.line else str(path)
        raise ConfigError(f"{place}: {problem}") from None
    if root is None:
        raise ConfigError(f"{path}: holds no keys; write at least one, such as those in the examples")
    if not isinstance(root.value, dict):
        what = "a list" if isinstance(root.value, list) else shown(root.value)
        raise ConfigError(f"{path} line {root.line}: must be keys with values (`key: value`), is {what}")
    return root


def _without_empty_groups(
    model: type[Model], root: Node, problems: list[tuple[int, str]], path: Path | None
) -> dict[str, Any]:
    """Plain values, without the groups and lists of which every line is commented out: those are defaults.

    A group whose presence switches something on (`vllm:`, `tls:`) must not stand there empty: that could mean
    either. A null that is written out (`tls: null`) is one.
    """

    def plain(node: Node, at: KeyPath) -> Any:
        if isinstance(node.value, list):
            return [plain(item, (*at, index)) for index, item in enumerate(node.value)]
        if not isinstance(node.value, dict):
            return node.value
        values: dict[str, Any] = {}
        for key, child in node.value.items():
            shape = shape_at(model, (*at, key))
            if not child.empty or shape is None or not shape.nested:
                values[key] = plain(child, (*at, key))
            elif shape.optional:
                sentence = f"{dotted((*at, key))}: {_empty(shape)}"
                problems.append((child.line, f"{path} line {child.line}: {sentence}"))
        return values

    values: dict[str, Any] = plain(root, ())
    return values


def _empty(shape: Shape) -> str:
    fields = shape.model.model_fields if shape.model else {}
    needed = [name for name, field in fields.items() if field.is_required()]
    if needed:
        return f"empty; set {', '.join(needed)} below it, or remove it"
    return "empty; write {} after it for all its defaults, or remove it"


def _place(
    at: KeyPath, root: Node | None, origins: dict[KeyPath, str], path: Path | None, prefix: str
) -> tuple[int, str]:
    """Where a key stands: the variable that set it, else its line or that of the group it belongs to."""
    for depth in range(len(at), 0, -1):
        if at[:depth] in origins:
            return 0, f"environment variable {origins[at[:depth]]}"
    if root is None or path is None:
        name = prefix + "__".join(str(step) for step in at).upper()
        return 0, f"no file, and no environment variable {name}"
    node = root
    for step in at:
        below = node.child(step)
        if below is None:
            break
        node = below
    # The whole file's line is none: what is missing at the top is missing on no line.
    return (0, str(path)) if node is root else (node.line, f"{path} line {node.line}")
