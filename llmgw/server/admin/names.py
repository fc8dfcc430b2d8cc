"""Names that clients of the admin API may use: a model also goes by its aliases."""

from __future__ import annotations

from llmgw.server.admin import border
from llmgw.server.admin.backend import AdminBackend


def model_name(backend: AdminBackend, text: str) -> str:
    """The model's own name for a name or an alias; what the catalog does not know comes back as it is.

    Raises AdminError(400) for what cannot be a name.
    """
    border.plain_name(text, "model")
    for model in backend.models():
        if text == model.name or text in model.aliases:
            return model.name
    return text
