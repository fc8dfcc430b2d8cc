"""What is said of routers that are units of their own."""

from __future__ import annotations

import llmgw
from llmgw.config.server import ServerConfig
from llmgw.server.router_findings import router_findings
from llmgw.server.router_process import router_settings
from llmgw.server.router_worker import RouterView


def view(settings: str) -> RouterView:
    return RouterView(
        name="router-0",
        pid="7",
        state="serving",
        listen="127.0.0.1:8080",
        version=llmgw.__version__,
        settings=settings,
    )


def test_a_unit_that_was_started_with_other_settings_is_told_with_what_makes_it_right() -> None:
    old, new = ServerConfig(), ServerConfig.model_validate({"router": {"connections_max": 500}})
    [finding] = router_findings([view(router_settings(old))], new, wanted=0)
    assert finding.check == "router-settings"
    assert "llmgw server install" in finding.remedy
    # Told nothing, or the same: nothing to say. What the server keeps itself it replaces by itself.
    assert router_findings([view("")], new, wanted=0) == []
    assert router_findings([view(router_settings(new))], new, wanted=0) == []
    assert router_findings([view(router_settings(old))], new, wanted=1) == []
