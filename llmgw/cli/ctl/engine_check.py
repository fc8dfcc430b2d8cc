"""`llmgw ctl engine-check`: do the engines take every flag that we would give them?"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.options import Ctl, command, note
from llmgw.cli.output import Column, print_json, print_table
from llmgw.cli.standard_input import read_standard_input
from llmgw.config.errors import SentenceError

if TYPE_CHECKING:
    from llmgw.engines.base import EngineAdapter
    from llmgw.engines.engine_check import Checked
    from llmgw.engines.help_rules import HelpRules
    from llmgw.messages.admin import EngineCheck

app = typer.Typer()

EXIT_MISSING = 1
EXIT_UNKNOWN = 2
HELP_FILE_BYTES_MAX = 8 * 1024 * 1024
LINE_CHARS_MAX = 100
# The server waits 75 s for the agent, which gives an engine 60 s.
NODE_TIMEOUT_S = 90.0

ENGINE = Annotated[str, typer.Argument(metavar="ENGINE", help="vllm, sglang, llamacpp or sim.")]
BIN = Annotated[
    str | None, typer.Option("--bin", metavar="PATH", help="The engine's program: vllm, llama-server or sglang.")
]
PYTHON = Annotated[
    str | None, typer.Option("--python", metavar="PATH", help="The interpreter that has the engine installed.")
]
HELP_FILE = Annotated[
    str | None,
    typer.Option("--help-file", metavar="FILE", help="A saved help text, and no program. - is standard input."),
]
NODE = Annotated[str | None, typer.Option("--node", metavar="NODE", help="Ask the engine on this node.")]
PROFILE = Annotated[
    str | None,
    typer.Option("--profile", metavar="MODEL/PROFILE", help="Check that profile's own args, too."),
]
CATALOG = Annotated[
    Path | None,
    typer.Option(
        "--catalog", metavar="FILE", help="The file with the profile. Default: the catalog of the server."
    ),
]
TIMEOUT = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=1, max=600, help="For the program to answer. Default: 60."),
]


class CannotTellError(SentenceError):
    """Nothing could be checked."""

    exit_code = EXIT_UNKNOWN


@command(app, "engine-check")
def engine_check(
    ctl: Ctl,
    engine: ENGINE,
    bin_: BIN = None,
    python: PYTHON = None,
    help_file: HELP_FILE = None,
    node: NODE = None,
    profile: PROFILE = None,
    catalog: CATALOG = None,
    timeout: TIMEOUT = None,
) -> None:
    """Check that an engine takes every flag that llmgw would give it, by its own help.

    Runs the engine's program on this host, unless told otherwise. Exit 0: all are taken, 1: some are missing,
    2: it cannot be told.
    """
    sources = {"--bin": bin_, "--python": python, "--help-file": help_file, "--node": node}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        raise typer.BadParameter(f"{given[0]} and {given[1]} name two things to ask; give one of them")
    if catalog is not None and profile is None:
        raise typer.BadParameter("--catalog is the file of --profile's profile; say which with --profile")
    if timeout is not None and given and given[0] in ("--help-file", "--node"):
        raise typer.BadParameter(f"--timeout is for a program that is run here, and {given[0]} runs none")
    try:
        adapter = _adapter(engine)
        args = _profile_args(ctl, adapter.name, profile, catalog) if profile is not None else []
        if node is not None:
            check, doubts = _check_on_node(ctl, adapter.name, node, args)
        else:
            checked = _check_here(adapter, bin_, python, help_file, args, timeout)
            check, doubts = checked.check, checked.doubts
    except SentenceError as error:
        raise CannotTellError(str(error)) from None
    for doubt in doubts:
        note(f"warning: {cells.text(doubt)}; a flag that is not in it is not called missing")
    if ctl.as_json:
        print_json(check)
    else:
        _print(check)
    if check.ok is not True:
        raise typer.Exit(EXIT_MISSING if check.ok is False else EXIT_UNKNOWN)


def _adapter(engine: str) -> EngineAdapter:
    from llmgw.engines import registry

    try:
        # Its makers write llama.cpp.
        return registry.adapter("llamacpp" if engine == "llama.cpp" else engine)
    except ValueError as error:
        raise CannotTellError(str(error)) from None


def _check_on_node(ctl: Ctl, engine: str, node: str, args: list[str]) -> tuple[EngineCheck, list[str]]:
    from llmgw.cli.ctl.client import segment, shaped
    from llmgw.messages.admin import EngineCheck

    body = {"engine": engine, "args": args}
    with ctl.connect() as api:
        value = api.post(f"nodes/{segment(node)}/engine-check", body, timeout_s=NODE_TIMEOUT_S)
    check = shaped(value, EngineCheck)
    return check, [f"the help text of {engine} on {node} looks truncated"] if check.truncated else []


def _check_here(
    adapter: EngineAdapter,
    bin_: str | None,
    python: str | None,
    help_file: str | None,
    args: list[str],
    timeout_s: float | None,
) -> Checked:
    from llmgw.agent.engine_help import HELP_LIMIT_S, ask_engine
    from llmgw.engines.engine_check import check_engine

    if help_file is not None:
        return check_engine(adapter, _read_help_file(help_file), args=args)
    program, rules = _program(adapter, bin_, python)
    texts = ask_engine(adapter, program, os.environ, rules=rules, limit_s=timeout_s or HELP_LIMIT_S)
    return check_engine(adapter, texts.text, sidecars=texts.sidecars, version=texts.version, args=args)


def _program(adapter: EngineAdapter, bin_: str | None, python: str | None) -> tuple[str, HelpRules]:
    """What to run, and how it is asked: what was named, else what this host's agent runs, else the default."""
    from llmgw.cli.agent import DEFAULT_PATHS
    from llmgw.config.load import first_there, load_agent_config
    from llmgw.engines.help_rules import help_rules, program_rules

    rules = help_rules(adapter.name)
    if bin_ is not None:
        return bin_, program_rules(rules)
    if python is not None:
        return (python if rules.ask_program else _beside(python, adapter)), rules
    path = first_there(DEFAULT_PATHS)
    if path is not None:
        config = load_agent_config(path, os.environ)
        if adapter.offered(config):
            return adapter.program(config), rules
    return _default_program(adapter), rules


def _default_program(adapter: EngineAdapter) -> str:
    from llmgw.config.agent import AgentConfig

    return adapter.program(AgentConfig(node_id="here", server="https://here"))


def _beside(python: str, adapter: EngineAdapter) -> str:
    """The engine's program in the environment of an interpreter."""
    name = _default_program(adapter)
    where = shutil.which(python)
    if where is None:
        raise CannotTellError(f"there is no program {python}; give the path of the interpreter to --python")
    program = os.path.join(os.path.dirname(where), name)
    if not os.path.exists(program):
        raise CannotTellError(
            f"there is no {name} beside {where}; install {adapter.name} there, or give the program to --bin"
        )
    return program


def _read_help_file(name: str) -> str:
    try:
        if name == "-":
            raw = read_standard_input(HELP_FILE_BYTES_MAX)
        else:
            with open(name, "rb") as file:
                raw = file.read(HELP_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CannotTellError(
            f"the help text {name} cannot be read: {error.strerror}; correct --help-file"
        ) from None
    except SentenceError as error:
        raise CannotTellError(str(error)) from None
    if len(raw) > HELP_FILE_BYTES_MAX:
        raise CannotTellError(f"{name} is larger than {HELP_FILE_BYTES_MAX} bytes, which is no help text")
    return raw.decode("utf-8", "replace")


def _profile_args(ctl: Ctl, engine: str, profile: str, file: Path | None) -> list[str]:
    """The arguments of a profile, from a file or from the server's catalog."""
    from llmgw.cli.ctl.names import model_and_profile
    from llmgw.config.load import catalog_of, load_catalog_file
    from llmgw.messages.admin import CatalogView, ModelView, ProfileView

    if file is not None:
        catalog = load_catalog_file(file).catalog
    else:
        from llmgw.cli.ctl.client import shaped

        with ctl.connect() as api:
            catalog = catalog_of(shaped(api.get("catalog"), CatalogView).models)
    views = [
        ModelView(
            name=model.name,
            aliases=model.aliases,
            profiles=[
                ProfileView(
                    name=each.name,
                    engine=each.engine,
                    nodes=each.nodes,
                    gpus_per_node=each.gpus_per_node,
                    wanted=each.replicas,
                )
                for each in model.profiles
            ],
        )
        for model in catalog.models
    ]
    found = catalog.find(*model_and_profile(profile, views))
    assert found is not None
    model, which = found
    if which.engine != engine:
        raise CannotTellError(
            f"profile {which.name!r} of model {model.name!r} runs on {which.engine}, and not on {engine}; "
            f"check it with llmgw ctl engine-check {which.engine}"
        )
    return which.args


def _print(check: EngineCheck) -> None:
    words = {True: "ok", False: "missing", None: "unknown"}
    rows = []
    for each in sorted(check.flags, key=lambda each: each.ok is True):
        said = re.sub(r"\s{2,}", "  ", cells.text(each.line or ""))
        said = said if len(said) <= LINE_CHARS_MAX else said[: LINE_CHARS_MAX - 1] + "…"
        if each.ok is False:
            meant = f"did you mean {each.nearest}?" if each.nearest else "the help lists nothing like it"
            said = f"{said}; {meant}" if said else meant
        rows.append([each.flag, words[each.ok], said])
    print_table(["flag", Column("taken", state=True), "by the engine's own help"], rows)
    name = check.engine if check.version is None else f"{check.engine} {check.version}"
    missing = [each.flag for each in check.flags if each.ok is False]
    unknown = sum(each.ok is None for each in check.flags)
    if missing:
        print(f"{name}: {len(missing)} of {len(check.flags)} flags are missing: {', '.join(missing)}")
    elif unknown:
        print(f"{name}: {unknown} of {len(check.flags)} flags cannot be told")
    else:
        print(f"{name}: all {len(check.flags)} flags are taken")
