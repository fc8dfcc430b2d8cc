"""`<state>/admin.json`: how `ctl` on this host finds the server and the first admin token. 0600."""

from __future__ import annotations

import json
import os
from pathlib import Path

from llmgw.config.random_words import new_secret_word
from llmgw.server.store.errors import explain
from llmgw.server.store.interface import StoreInterface
from llmgw.server.store.secrets import hash_secret, matching_token

LOCAL_TOKEN = "local"


async def write_admin_file(state: Path, store: StoreInterface, url: str, ca: str | None, now: float) -> None:
    """Write address and token; the token is the one of last time while it is still valid. Raises StoreError."""
    path = state / "admin.json"
    token = _kept_token(path)
    if token is None or matching_token(store.token_hashes(), token) is None:
        if any(view.name == LOCAL_TOKEN for view in store.tokens()):
            await store.revoke_token(LOCAL_TOKEN, now)
        token = new_secret_word()
        await store.create_token(LOCAL_TOKEN, hash_secret(token), now)
    content = {"url": url, "token": token, **({"ca": ca} if ca is not None else {})}
    beside = path.with_suffix(".json.new")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps(content) + "\n")
        beside.replace(path)
    except OSError as error:
        raise explain(error, path) from None


def _kept_token(path: Path) -> str | None:
    try:
        token = json.loads(path.read_text())["token"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return token if isinstance(token, str) else None
