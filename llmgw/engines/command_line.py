"""How an engine reads its command line, and what a profile's `args` mean there.

Engines differ: argparse takes `--hos` for `--host` and `-n2` for `-n 2`, llama.cpp takes neither, and some take
`--a_b` for `--a-b`. What a profile may not set has to be seen in every spelling that the engine would take.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How one engine's parser reads arguments, as its own parser showed it.

    `underscores`: `--a_b` is `--a-b`. `abbreviations`: argparse's, that is the beginning of a flag, and a value
    joined to a flag of one letter (`-n2`). `whole`: flags that exist, and begin others as well. `equals`:
    `--flag=value`. `dotted`: `--flag.key value` sets a part of a flag that takes JSON.
    """

    underscores: bool = False
    abbreviations: bool = False
    whole: frozenset[str] = frozenset()
    equals: bool = False
    dotted: bool = False


@dataclass(frozen=True, kw_only=True)
class Given:
    """One flag as a profile gave it: as written without its value, what it may mean, and its values."""

    written: str
    flags: frozenset[str]
    values: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One flag that an adapter sets. The first spelling is the one that is written; the others mean the same."""

    spellings: tuple[str, ...]
    values: tuple[str, ...] = ()

    def argv(self) -> list[str]:
        """The flag and its values, each an argument of its own."""
        return [self.spellings[0], *self.values]


def setting(spellings: str, *values: object) -> Setting:
    """`setting("--tensor-parallel-size -tp", 8)`."""
    return Setting(spellings=tuple(spellings.split()), values=tuple(str(value) for value in values))


def flag_of(arg: str) -> str | None:
    """The flag in one argument as it is listed in help texts, or None for a value.

    `--api_key=x` → `--api-key`, `-np` → `-np`, `-1` and `fast` → None.
    """
    if not arg.startswith("-") or arg in ("-", "--") or arg[1].isdigit():
        return None
    name = arg.partition("=")[0]
    return "--" + name[2:].replace("_", "-") if name.startswith("--") else name


def read_args(args: Sequence[str], vocabulary: Collection[str], reading: Reading) -> list[Given]:
    """Every flag in `args`, with the flags of `vocabulary` that the engine may take it for, none for most.

    More than one is an abbreviation that fits several. A value is what follows up to the next flag.
    """
    found = []
    for index, arg in enumerate(args):
        flag = flag_of(arg)
        if flag is None:
            continue
        flags, joined = _meanings(flag, vocabulary, reading)
        name, equals, value = arg.partition("=")
        if equals:
            values = [value]
        elif joined is not None:
            values = [joined]
        else:
            values = _until_next_flag(args[index + 1 :])
        found.append(Given(written=name, flags=flags, values=tuple(values)))
    return found


def compose(settings: Sequence[Setting], args: Sequence[str], reading: Reading) -> tuple[list[str], list[str]]:
    """(our settings and the profile's arguments as one command line, sentences about contradictions).

    What the profile sets itself is left out of ours, so that no engine has to choose between two.
    """
    vocabulary = {spelling for one in settings for spelling in one.spellings}
    given = read_args(args, vocabulary, reading)
    argv: list[str] = []
    warnings: list[str] = []
    for one in settings:
        theirs = [each for each in given if each.flags & set(one.spellings)]
        if not theirs:
            argv += one.argv()
        elif theirs[-1].values != one.values:
            warnings.append(
                f"args has {_shown(theirs[-1].written, theirs[-1].values)} where llmgw would set "
                f"{_shown(one.spellings[0], one.values)}; the profile's own is used"
            )
    return [*argv, *args], warnings


def value_of(args: Sequence[str], spellings: Iterable[str], reading: Reading) -> str | None:
    """The value that `args` gives a flag in any of its spellings; the last one counts. None: it gives none."""
    names = frozenset(spellings)
    values = [given.values[0] for given in read_args(args, names, reading) if given.flags and given.values]
    return values[-1] if values else None


def has_flag(args: Sequence[str], spellings: Iterable[str], reading: Reading) -> bool:
    """True when `args` sets a flag in any of its spellings."""
    return any(given.flags for given in read_args(args, frozenset(spellings), reading))


def _meanings(flag: str, vocabulary: Collection[str], reading: Reading) -> tuple[frozenset[str], str | None]:
    """(the flags that one may stand for, a value that is joined to it)."""
    if reading.dotted:
        flag = flag.partition(".")[0]
    if flag in vocabulary:
        return frozenset([flag]), None
    if not reading.abbreviations or flag in reading.whole:
        return frozenset(), None
    if flag.startswith("--"):
        return frozenset(each for each in vocabulary if each.startswith(flag)), None
    # Of a single dash argparse takes both: the beginning of a longer flag, and `-n2` for `-n 2`.
    letter = flag[:2]
    if letter in vocabulary and len(flag) > 2:
        return frozenset([letter]), flag[2:]
    return frozenset(each for each in vocabulary if each.startswith(flag) and not each.startswith("--")), None


def _until_next_flag(args: Sequence[str]) -> list[str]:
    values = []
    for arg in args:
        if flag_of(arg) is not None:
            break
        values.append(arg)
    return values


def _shown(flag: str, values: Sequence[str]) -> str:
    return " ".join([flag, *values])
