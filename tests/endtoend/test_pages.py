"""The pages of a real server process: logged in with the token that it wrote itself."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.endtoend.servers import server
from tests.pages.chromium import until
from tests.pages.listener import Listener
from tests.pages.visitor import Visitor


def test_the_first_token_logs_in_and_a_revoked_one_is_out_at_once(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        first = json.loads((running.state / "admin.json").read_text())["token"]
        running.ctl("token", "create", "ops")
        visitor = Visitor(running.admin)
        assert visitor.log_in("not-" + first).status_code == 401
        assert visitor.log_in(first).status_code == 303
        home = visitor.http.get("/admin")
        assert home.status_code == 200
        assert "Nothing is wrong" in home.text or "What is wrong" in home.text
        assert "No node has declared one" in visitor.http.get("/admin/fabrics").text
        unknown = visitor.http.get("/admin/fabrics/ib-a")
        assert unknown.status_code == 404
        assert "There is no fabric &#39;ib-a&#39;; there are none at all." in unknown.text
        assert visitor.http.get("/api/v1/fabrics/ib-a/topology").json()["code"] == "unknown-fabric"
        token = next(each["name"] for each in running.get("tokens") if each["name"] != "ops")
        changed = visitor.http.delete(f"/api/v1/tokens/{token}", headers={"x-csrf-token": visitor.csrf()})
        assert changed.status_code == 200
        assert visitor.http.get("/api/v1/server").json()["code"] == "session-over"
        assert first not in running.log()


def test_open_pages_hear_of_changes_and_do_not_hold_up_the_end(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        visitor = Visitor(running.admin)
        visitor.log_in(json.loads((running.state / "admin.json").read_text())["token"])
        page = Listener(visitor)
        first = page.hear()
        assert first[0] == "news"
        running.ctl("token", "create", "ops")
        assert until(lambda: page.hear()[0] == "news", "a change by ctl is told")
        running.process.process.send_signal(signal.SIGTERM)
        # Cut off in the middle this would be an error.
        assert until(lambda: page.hear() == ("end", ""), "the stream has an end")
        assert running.process.process.wait(10) == 0
