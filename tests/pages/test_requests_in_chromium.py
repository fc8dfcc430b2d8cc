"""The playground and the pages of requests and usage in a real Chromium."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.messages.admin import ModelView
from llmgw.messages.routes import Outcome
from tests.ctl.scripted import ScriptedBackend, ServedAdmin
from tests.pages.chromium import chromium, chromium_path, keep_screenshot, log_in, until
from tests.pages.gateway import Gateway, gateway, streaming
from tests.router.support import plain

pytest.importorskip("playwright", reason="pip install playwright drives the browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium_path() is None, reason="no Chromium: apt-get install chromium"),
]

HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
MEAN = 'it\'s "quoted" $HOME `id` \\ \u2028 é 漢 \n\ttwo lines\x7f'


@pytest.fixture(scope="module")
def answering() -> Iterator[Gateway]:
    with gateway(streaming("a")) as running:
        yield running


@pytest.fixture(scope="module")
def served(answering: Gateway) -> Iterator[ServedAdmin]:
    backend = ScriptedBackend()
    backend.gateway = answering.address
    backend.models_known.append(ModelView(name="bge", task="embedding", endpoints_ready=1))
    tell(backend)
    server = ServedAdmin(backend)
    yield server
    server.stop()


def tell(backend: ScriptedBackend) -> None:
    good: dict[str, Any] = {"key": "k1", "total_s": 1.5, "first_byte_s": 0.2, "prompt_tokens": 12345}
    backend.recent.tell(
        Outcome("chat-small", "chat-small-3c4d", 200, request_id="req-1", completion_tokens=7, **good),
        Outcome(
            "chat-small", "chat-small-3c4d", 200, 1, request_id="req-2", stream=True,
            retried_because="chat-small-5e6f: it answered 503", **good,
        ),
        Outcome("org/chat-large", "chat-large-1a2b", 502, error=f"No answer: {HOSTILE}", total_s=0.2),
        Outcome("chat-small", "chat-small-3c4d", 499, error="the client left", total_s=9.0),
        Outcome("", None, 401, error="wrong_api_key"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


class Person:
    """One who has logged in, with what the browser complained of."""

    session: dict[str, Any] | None = None
    """The cookies of the one that logged in first."""

    def __init__(self, browser: Any, served: ServedAdmin, path: str, **context: Any) -> None:
        window = {"viewport": {"width": 1600, "height": 950}, "storage_state": Person.session}
        self.context = browser.new_context(**{**window, **context})
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.url = served.url
        if Person.session is None:
            log_in(self.page, served.url, path)
            Person.session = self.context.storage_state()
        else:
            self.page.goto(served.url + path)

    def text(self, selector: str) -> str:
        found: str = self.page.text_content(selector)
        return found

    def say(self, words: str) -> None:
        self.page.fill("#message", words)
        self.page.click("#send")

    def answered(self) -> None:
        """Waits until no answer is under way."""
        self.page.wait_for_selector("#talk:not([aria-busy])")
        self.page.wait_for_selector("#stop", state="hidden")

    def wide(self) -> bool:
        """Whether the page as a whole scrolls sideways."""
        found: bool = self.page.evaluate("() => document.documentElement.scrollWidth > innerWidth")
        return found

    def content(self) -> None:
        """Nothing went wrong, and nothing was asked of anybody else."""
        assert self.complaints == []
        assert [url for url in self.asked if not url.startswith((self.url, "data:"))] == []
        assert self.page.evaluate("() => window.hacked") is None


@pytest.fixture
def person(browser: Any, served: ServedAdmin) -> Iterator[Person]:
    person = Person(browser, served, "/admin/playground?model=chat-small")
    yield person
    person.context.close()


def test_a_chat_streams_goes_on_and_is_counted(person: Person, answering: Gateway, tmp_path: Path) -> None:
    answering.engine.requests.clear()
    answering.script = streaming("Hello ", HOSTILE, "\nand more", completion=42, pause_s=0.03)
    person.page.fill("[name=system]", "Be brief.")
    person.page.fill("[name=temperature]", "0.7")
    person.page.fill("[name=more]", '{"top_k": 20}')
    person.say(f"Hi {HOSTILE}")
    person.answered()
    assert person.text(".turn.user .text") == f"Hi {HOSTILE}"
    assert person.text(".turn.assistant .text") == f"Hello {HOSTILE}\nand more"
    figures = person.text("#figures")
    assert figures.startswith("First token after ")
    assert "1,234 prompt tokens (1,000 cached) · 42 tokens in " in figures
    assert " tokens/s · from chat-small-3c4d · This request" in figures
    assert person.page.get_attribute("#figures a", "href") == "/admin/requests?id=req-77"
    person.page.keyboard.type("And then?")
    person.page.keyboard.press("Enter")
    person.page.wait_for_selector(".turn:nth-child(4)")
    person.answered()
    first, second = answering.bodies
    assert [each["role"] for each in first["messages"]] == ["system", "user"]
    assert (first["temperature"], first["top_k"], first["stream"]) == (0.7, 20, True)
    assert first["stream_options"] == {"include_usage": True}
    assert [each["role"] for each in second["messages"]] == ["system", "user", "assistant", "user"]
    assert second["messages"][2]["content"] == f"Hello {HOSTILE}\nand more"
    keep_screenshot(person.page, tmp_path, "playground-1600")
    person.page.click("#anew")
    assert person.page.locator(".turn").count() == 0
    person.content()


def test_stopping_in_mid_stream_closes_the_engines_connection_and_keeps_what_came(
    person: Person, answering: Gateway, served: ServedAdmin
) -> None:
    answering.script = streaming("As far as this", endless=True)
    left = answering.left
    person.say("Tell me everything")
    person.page.wait_for_function("() => document.querySelector('.assistant .text')?.textContent !== ''")
    assert person.page.is_disabled("#send")
    person.page.click("#stop")
    person.answered()
    until(lambda: answering.left == left + 1, "the engine's client has left")
    until(lambda: served.backend.playground.running == 0, "nothing is left in flight")
    assert person.text(".turn.assistant .text") == "As far as this"
    assert person.text(".turn.assistant .who-said").endswith("– stopped")
    assert "stopped" in person.text("#figures")
    answering.script = streaming("again")
    person.say("Go on")
    person.page.wait_for_selector(".turn:nth-child(4)")
    person.answered()
    assert person.page.locator(".turn.assistant .text").last.text_content() == "again"
    person.content()


def test_what_goes_wrong_is_a_sentence_and_the_message_can_be_sent_again(
    person: Person, answering: Gateway, served: ServedAdmin
) -> None:
    answering.script = plain(json.dumps({"error": {"message": f"Nothing is ready {HOSTILE}."}}).encode(), 503)
    person.say("hello?")
    person.page.wait_for_selector("#trouble:not([hidden])")
    assert person.text("#trouble") == f"Nothing is ready {HOSTILE}."
    person.answered()
    assert person.page.input_value("#message") == "hello?"
    served.backend.gateway, kept = "127.0.0.1:9", served.backend.gateway
    person.page.click("#send")
    person.page.wait_for_function("() => document.getElementById('trouble').textContent.includes('no router')")
    served.backend.gateway = kept
    person.page.fill("[name=more]", "{")
    assert person.text("#more-wrong").startswith("These parameters are no JSON object")
    person.page.fill("[name=more]", "")
    person.page.select_option("#model", "bge")
    assert person.text("#not-for-chat") == "▲ bge is for embeddings and does not chat; ask it at /v1/embeddings."
    assert person.page.is_disabled("#send")
    person.complaints = [line for line in person.complaints if "Failed to load resource" not in line]
    person.content()


def test_the_examples_ask_the_very_same_whatever_was_typed(person: Person, tmp_path: Path) -> None:
    person.page.fill("[name=system]", MEAN)
    person.page.fill("[name=max_tokens]", "5")
    person.page.fill("[name=more]", '{"top_k": 20, "logprobs": true, "guided": {"a": [null, false]}}')
    person.page.fill("#message", MEAN)
    wanted = {
        "model": "chat-small",
        "messages": [{"role": "system", "content": MEAN}, {"role": "user", "content": MEAN}],
        "max_tokens": 5,
        "top_k": 20,
        "logprobs": True,
        "guided": {"a": [None, False]},
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    program = tmp_path / "curl"
    program.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    program.chmod(0o755)
    command = person.text("#curl")
    done = subprocess.run(
        ["/bin/sh", "-c", command], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    *head, body = json.loads(done.stdout)
    assert head[1].endswith("/v1/chat/completions")
    assert json.loads(body) == wanted

    asked: dict[str, Any] = {}

    class OpenAI:
        def __init__(self, base_url: str, api_key: str) -> None:
            asked["base_url"] = base_url
            self.chat = types.SimpleNamespace(completions=self)

        def create(self, *, extra_body: dict[str, Any], **given: Any) -> list[Any]:
            asked["body"] = {**given, **extra_body}
            return []

    stub = types.ModuleType("openai")
    stub.OpenAI = OpenAI  # type: ignore[attr-defined]
    sys.modules["openai"], kept = stub, sys.modules.get("openai")
    try:
        exec(person.text("#python"), {})
    finally:
        del sys.modules["openai"]
        if kept is not None:
            sys.modules["openai"] = kept
    assert asked["body"] == wanted
    assert asked["base_url"].endswith("/v1")
    person.page.click("[data-copies=curl]")
    person.page.wait_for_selector("#copied:not(.hidden)")
    person.content()


def test_the_pages_fit_narrow_and_wide_windows_in_light_and_dark(
    browser: Any, served: ServedAdmin, tmp_path: Path
) -> None:
    person = Person(browser, served, "/admin/requests")
    try:
        page = person.page
        page.click("#request-3 summary")
        assert f"No answer: {HOSTILE}" in person.text("#facts-3")
        for path in ("requests", "usage", "playground"):
            if path != "requests":
                page.goto(f"{served.url}/admin/{path}")
            for width in (400, 1600):
                page.set_viewport_size({"width": width, "height": 900})
                assert not person.wide(), (path, width)
                for scheme in ("light", "dark"):
                    page.emulate_media(color_scheme=scheme)
                    keep_screenshot(page, tmp_path, f"{path}-{width}-{scheme}")
        person.content()
    finally:
        person.context.close()


def test_a_request_that_ends_appears_and_what_is_open_stays_so(browser: Any, served: ServedAdmin) -> None:
    person = Person(browser, served, "/admin/requests")
    try:
        page = person.page
        page.click("#request-2 summary")
        served.backend.recent.tell(Outcome("chat-small", "chat-small-3c4d", 200, request_id="new"))
        served._loop.call_soon_threadsafe(served.backend.news.happen)
        page.wait_for_selector("#request-6")
        assert page.is_visible("#facts-2 dl")
        person.content()
    finally:
        person.context.close()


def test_without_scripts_the_form_gets_a_whole_answer(
    browser: Any, served: ServedAdmin, answering: Gateway
) -> None:
    told = {"choices": [{"message": {"content": f"whole {HOSTILE}"}}], "usage": {"completion_tokens": 3}}
    answering.script = plain(json.dumps(told).encode())
    person = Person(browser, served, "/admin/playground", java_script_enabled=False)
    try:
        person.page.fill("#message", "hello")
        person.page.click("#send")
        assert person.text(".turn.assistant .text") == f"whole {HOSTILE}"
        assert person.page.is_hidden("#stop")
        assert person.page.is_hidden("#examples")
    finally:
        person.context.close()
