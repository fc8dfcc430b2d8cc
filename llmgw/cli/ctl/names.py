"""Names as people type them: the unique beginning of a replica id, and MODEL/PROFILE with slashes in MODEL."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from llmgw.config.errors import SentenceError

if TYPE_CHECKING:
    from llmgw.messages.admin import ModelView

_SHOWN_MAX = 20


class UnclearNameError(SentenceError):
    """A name that means nothing here, or more than one thing."""


def replica_named(text: str, known: list[str]) -> str:
    """The id that `text` is, or is the beginning of. Raises a SentenceError when none or several are."""
    if text in known:
        return text
    matches = sorted(name for name in known if text and name.startswith(text))
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UnclearNameError(f"{text!r} begins several replicas: {_shown(matches)}; type more of it")
    raise UnclearNameError(unknown("replica", text, known))


def model_and_profile(text: str, models: list[ModelView]) -> tuple[str, str]:
    """Take `MODEL[/PROFILE]` apart, by the names and aliases that exist; the longest model name wins.

    Raises a SentenceError when nothing matches, or when the model has several profiles and none is named.
    """
    names = {name: model for model in models for name in (model.name, *model.aliases)}
    fitting = sorted((name for name in names if text == name or text.startswith(f"{name}/")), key=len)
    if not fitting:
        raise UnclearNameError(unknown("model", text, [model.name for model in models]))
    model, rest = names[fitting[-1]], text[len(fitting[-1]) + 1 :]
    profiles = [profile.name for profile in model.profiles]
    if not profiles:
        raise UnclearNameError(
            f"model {model.name!r} has static endpoints and no profiles: nothing of it runs here"
        )
    if rest:
        if rest not in profiles:
            raise UnclearNameError(unknown("profile", rest, profiles, f" of model {model.name!r}"))
        return model.name, rest
    if len(profiles) > 1:
        choices = " or ".join(f"{model.name}/{profile}" for profile in profiles)
        raise UnclearNameError(f"model {model.name!r} has several profiles; say which: {choices}")
    return model.name, profiles[0]


def unknown(what: str, text: str, known: list[str], of: str = "") -> str:
    """`there is no model 'chta'; did you mean 'chat'? known: …`."""
    if not known:
        return f"there is no {what} {text!r}{of}; there are none at all"
    close = get_close_matches(text, known, n=1)
    meant = f" did you mean {close[0]!r}?" if close else ""
    return f"there is no {what} {text!r}{of};{meant} known: {_shown(sorted(known))}"


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return ", ".join(names[:_SHOWN_MAX]) + more
