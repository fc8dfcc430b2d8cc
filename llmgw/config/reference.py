"""docs/configuration.md, written from the models: every key, its type, default and meaning."""

from __future__ import annotations

from typing import Any

from pydantic.fields import FieldInfo

from llmgw.config.agent import AgentConfig
from llmgw.config.base import Model, format_duration
from llmgw.config.schema import Shape, meanings, shape_of
from llmgw.config.server import ServerConfig
from llmgw.config.sizes import format_size

_HEAD = """\
# Configuration

This page is written from the program by `scripts/docs`; change the models in `llmgw/config/`, not this page.

Two YAML files, each with an example that shows every key: [`examples/server.yaml`](../examples/server.yaml)
for the server, [`examples/agent.yaml`](../examples/agent.yaml) for the agent of a node.
[`examples/laptop.yaml`](../examples/laptop.yaml) is all that a gateway before one local model needs. Whether a
file is good is said by

```sh
llmgw server --check --config server.yaml
llmgw agent --check --config agent.yaml
```

A key that does not exist is refused, and so is every value that cannot be meant. Each mistake is told with
file, line, key and remedy, all of them at once:

```text
error: server.yaml line 7: models[0].profiles[0].gpus_per_nodes: unknown key; did you mean gpus_per_node?
```

Without `--config`, the server reads `./server.yaml`, else `/etc/llmgw/server.yaml`, else it runs on its defaults;
the agent reads `./agent.yaml`, else `/etc/llmgw/agent.yaml`.

**Durations** are written `250ms`, `5s`, `2m`, `1h30m`, `1d`; a plain number is seconds. **Sizes** are written
`500MB` (1000² bytes a MB), `10GiB` (1024³ bytes a GiB); a plain number is bytes. **Shares** are written `90%` or
`0.9`. **Addresses** are `host:port`, with IPv6 in brackets: `[::1]:8080`. **Values** are what is written:
`name: 405` and `1.10` stay as they are where text is wanted. Anchors, aliases and `<<` work; files are at most
4 MiB.

**The environment** overrides every key that is not inside a list: `LLMGW_SERVER__LISTEN`, `LLMGW_AGENT__SERVER`,
with two underscores for each step down, as in `LLMGW_AGENT__TLS__CA`. Lists and groups are YAML text:
`LLMGW_AGENT__FABRICS='[{name: ib-a, hcas: [mlx5_0]}]'`. A variable with such a beginning that names no key is
refused.

**Logs** go to stderr, as text on a terminal and as JSON elsewhere. `LLMGW_LOG=text` or `json` and
`LLMGW_LOG_LEVEL=debug`, `info`, `warning`, `error` or `critical` say otherwise.
"""


def configuration_page() -> str:
    """The whole page as Markdown."""
    parts = [_HEAD]
    for file, model in (("server.yaml", ServerConfig), ("agent.yaml", AgentConfig)):
        parts.append(f"## {file}\n")
        parts += _tables(model, "")
    return "\n".join(parts)


def _tables(model: type[Model], prefix: str) -> list[str]:
    """A table for the keys of a group, then one for each group below it."""
    told = meanings(model)
    lines = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    below: list[str] = []
    for name, field in model.model_fields.items():
        shape = shape_of(field)
        inner = shape.model or (shape.item.model if shape.item else None)
        cells = [f"`{name}`", _type(field, shape), _default(field, shape), told.get(name, "")]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        if inner is not None:
            path = f"{prefix}{name}{'' if shape.model else '[]'}"
            intro = " ".join((inner.__doc__ or "").split())
            below += [f"### `{path}`\n", f"{intro}\n", *_tables(inner, f"{path}.")]
    return ["\n".join(lines) + "\n", *below]


def _type(field: FieldInfo, shape: Shape) -> str:
    low = high = ""
    strict = False
    for bound in field.metadata:
        # Ge, Gt and Le of the annotated-types package, by which Pydantic keeps the bounds of a Field.
        if hasattr(bound, "ge"):
            low = _number(bound.ge, shape)
        elif hasattr(bound, "gt"):
            low, strict = _number(bound.gt, shape), True
        elif hasattr(bound, "le"):
            high = _number(bound.le, shape)
    if low and high and not strict:
        return f"{shape.words}, {low} to {high}"
    limits = [f"more than {low}" if strict else f"at least {low}"] if low else []
    limits += [f"at most {high}"] if high else []
    return ", ".join([shape.words, *limits])


def _number(bound: Any, shape: Shape) -> str:
    if shape.kind == "size":
        return format_size(bound)
    return format_duration(float(bound)) if shape.kind == "duration" else f"{bound:.15g}"


def _default(field: FieldInfo, shape: Shape) -> str:
    """The default as it would be written; `—` where there is none, and for groups, whose keys have their own."""
    if field.is_required():
        return "**required**"
    value = field.default
    if field.default_factory is not None:
        made = field.get_default(call_default_factory=True, validated_data={})
        # Only a list is the same on every machine; the node's name is told in words.
        return f"`[{', '.join(map(str, made))}]`" if isinstance(made, list) and made else "—"
    if value is None or value == "" or isinstance(value, Model):
        return "—"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    written = {"duration": format_duration, "size": format_size}.get(shape.kind, str)
    return f"`{written(value)}`"
