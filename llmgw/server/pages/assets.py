"""What pages load: scripts, styles, and the icon. All of it under one address that changes with any of it."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from llmgw.server.admin.answers import ALWAYS

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
PREFIX = "/admin/static"
FOR_EVER = "public, max-age=31536000, immutable"


@functools.cache
def assets() -> dict[str, bytes]:
    """Path below the folder → content, read once."""
    return {
        path.relative_to(FOLDER).as_posix(): path.read_bytes()
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in TYPES and path.is_file()
    }


@functools.cache
def assets_version() -> str:
    """A digest of everything: modules import each other by relative names, so they change address together."""
    digest = hashlib.sha256()
    for name, content in assets().items():
        digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16]


def asset_url(name: str) -> str:
    """The address of one. Raises KeyError for what is not there: a page must not name it."""
    assets()[name]
    return f"{PREFIX}/{assets_version()}/{name}"


async def serve_asset(request: Request) -> Response:
    """One of them, kept by browsers for ever; that of another version is not there."""
    content = assets().get(request.path_params["name"])
    if content is None or request.path_params["version"] != assets_version():
        said = "there is no such file in this version of llmgw; load the page again\n"
        return Response(said, 404, ALWAYS, media_type="text/plain")
    suffix = Path(request.path_params["name"]).suffix
    headers = {"cache-control": FOR_EVER, "x-content-type-options": "nosniff", "content-type": TYPES[suffix]}
    return Response(content, headers=headers)
