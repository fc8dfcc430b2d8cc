"""The cookies of the admin pages: their names, how they are read, and how they are set."""

from __future__ import annotations

from starlette.responses import Response

SESSION = "llmgw-session"
VISITOR = "llmgw-visitor"
"""Of the login form alone."""


def cookie_name(name: str, *, secure: bool) -> str:
    """Under TLS with the prefix by which browsers refuse one that another host or plain HTTP has set
    (RFC 6265bis, section 4.1.3.2)."""
    return f"__Host-{name}" if secure else name


def read_cookie(headers: list[tuple[bytes, bytes]], name: str, *, secure: bool) -> str | None:
    """The value of a cookie; None when it is not there, or there twice."""
    wanted = cookie_name(name, secure=secure)
    found = []
    for header, value in headers:
        if header != b"cookie":
            continue
        for part in value.decode("latin-1").split(";"):
            key, equals, text = part.strip().partition("=")
            if equals and key == wanted:
                found.append(text)
    return found[0] if len(found) == 1 else None


def set_cookie(answer: Response, name: str, value: str, *, secure: bool, age_s: int) -> None:
    """For this host alone, out of every script's reach, and never sent with a request that another site made."""
    answer.set_cookie(
        cookie_name(name, secure=secure),
        value,
        max_age=age_s,
        path="/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )


def drop_cookie(answer: Response, name: str, *, secure: bool) -> None:
    """Have the browser forget it."""
    set_cookie(answer, name, "", secure=secure, age_s=0)
