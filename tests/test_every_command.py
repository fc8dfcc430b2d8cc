"""Every command of the program: help that says what it does, and `-o json` wherever it prints facts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from llmgw.cli.app import app

# They run until they are ended, or print no facts: a line for people, a file, an engine's output.
NO_FACTS = {
    "llmgw agent",
    "llmgw server",
    "llmgw router",
    "llmgw demo",
    "llmgw version",
    "llmgw ctl logs",
    "llmgw ctl token create",
}
# Of simulated things: a line says what was changed.
SIMULATED = "llmgw sim "


def commands() -> Iterator[tuple[str, Any]]:
    """(name, command) of everything that can be called, groups that do something by themselves included."""

    def below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        children: dict[str, Any] = {}
        if hasattr(command, "list_commands"):
            context = command.make_context(name, [], resilient_parsing=True)
            children = {child: command.get_command(context, child) for child in command.list_commands(context)}
        if not children or command.invoke_without_command:
            yield name, command
        for child, inner in children.items():
            yield from below(f"{name} {child}", inner)

    yield from below("llmgw", typer.main.get_command(app))


EVERY = dict(commands())


def options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("name", sorted(set(EVERY) - {"llmgw"}))
def test_a_command_says_what_it_does_and_what_each_option_means(name: str) -> None:
    command = EVERY[name]
    assert command.help, "it has no help"
    assert len(command.help.split()) >= 3
    silent = [
        parameter.name
        for parameter in command.params
        if "--help" not in parameter.opts
        and not getattr(parameter, "hidden", False)
        and any(option.startswith("-") for option in parameter.opts)
        and not getattr(parameter, "help", None)
    ]
    assert silent == [], "options without help"


@pytest.mark.parametrize(
    "name",
    [name for name in sorted(set(EVERY) - {"llmgw"} - NO_FACTS) if not name.startswith(SIMULATED)],
)
def test_a_command_that_prints_facts_prints_them_for_programs_too(name: str) -> None:
    assert "-o" in options(EVERY[name]), f"{name} has no -o json"


def test_what_needs_no_json_is_there() -> None:
    assert set(EVERY) >= NO_FACTS
