"""/admin/models: all of them, and each with its profiles, replicas, figures and what happened to it lately."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmgw.messages.admin import ModelView
from llmgw.messages.recent_views import ModelRates
from llmgw.server.admin import border
from llmgw.server.admin.answers import not_found
from llmgw.server.admin.backend import AdminBackend, AdminError
from llmgw.server.admin.names import model_name
from llmgw.server.admin.writes import REPLICAS_MAX
from llmgw.server.catalog_owner import NEEDS_CONFIRMATION
from llmgw.server.pages.addresses import model_url
from llmgw.server.pages.changes import SAID, read_change, shown_again
from llmgw.server.pages.handlers import as_page
from llmgw.server.pages.model_facts import charts_of, findings_of, limits_of, profiles_of
from llmgw.server.pages.model_rows import model_rows
from llmgw.server.pages.places import Places
from llmgw.server.pages.problems import group_problems
from llmgw.server.pages.rendering import page, sentence

ENTRIES_SHOWN = 20
TYPED_CHARS_MAX = 20


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A wish to scale that was not carried out: what was typed stays, with the sentence beside it."""

    profile: str
    typed: str
    said: str
    confirmable: bool


def model_routes(backend: AdminBackend) -> list[Route]:
    """The list, a model's page, and the form of that page that scales a profile."""

    async def models(request: Request) -> Response:
        border.only_parameters(request, SAID)
        rates = backend.recent.rates()
        return page(
            request,
            "models.html",
            models=model_rows(backend.models(), rates),
            window_s=rates[0].window_s if rates else None,
        )

    async def model(request: Request) -> Response:
        border.only_parameters(request, SAID)
        return await _shown(request, backend, model_name(backend, request.path_params["model"]))

    async def scale(request: Request) -> Response:
        form = await read_change(request)
        name = model_name(backend, request.path_params["model"])
        profile = border.plain_name(form.get("profile", ""), "profile")
        typed = form.get("replicas", "").strip()
        try:
            done = await backend.scale(
                name,
                profile,
                _count(typed),
                confirmed=form.get("confirmed") == "yes",
                by=request.state.by,
            )
        except AdminError as error:
            if error.status not in (400, 409):
                raise
            refused = Refused(
                profile=profile,
                typed=typed[:TYPED_CHARS_MAX],
                said=sentence(error.message),
                confirmable=error.code == NEEDS_CONFIRMATION,
            )
            request.state.sentence = refused.said  # for the audit log
            return await _shown(request, backend, name, error.status, refused)
        return shown_again(request, model_url(name), done)

    return [
        Route("/admin/models", as_page(models), methods=["GET"]),
        Route("/admin/models/{model:path}", as_page(model), methods=["GET"]),
        Route("/admin/models/{model:path}", as_page(scale), methods=["POST"]),
    ]


async def _shown(
    request: Request, backend: AdminBackend, name: str, status: int = 200, refused: Refused | None = None
) -> Response:
    replicas = [replica for replica in backend.replicas() if replica.model == name]
    models = {each.name: each for each in backend.models()}
    if name not in models and not replicas:
        raise not_found("model", name, list(models))
    # One that left the catalog may still have replicas that are stopping.
    view = models.get(name) or ModelView(name=name)
    nothing = ModelRates(model=name, window_s=1.0)
    why = backend.explain(name).profiles if view.profiles else []
    catalog = await backend.catalog.view(None)
    return page(
        request,
        "model.html",
        status,
        model=view,
        gone=name not in models,
        problems=group_problems(
            findings_of(backend.server().problems, view, replicas), Places.of([], replicas, [view], [])
        ),
        limits=limits_of(catalog.models, name),
        profiles=profiles_of(view, why, replicas),
        replicas=replicas,
        rates=next((each for each in backend.recent.rates() if each.model == name), nothing),
        charts=charts_of(backend.recent.series(name)),
        entries=await backend.history(subject=None, kind=None, model=name, before=None, limit=ENTRIES_SHOWN),
        refused=refused,
        replicas_max=REPLICAS_MAX,
    )


def _count(text: str) -> int:
    # int() reads signs, spaces, underscores and other scripts' digits; a form's field needs none of them.
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) > REPLICAS_MAX:
        message = f"replicas must be a whole number from 0 to {REPLICAS_MAX}, not {text[:TYPED_CHARS_MAX]!r}"
        raise border.bad_request(message)
    return int(text)
