"""The one-token request of each task, as the servers that get it would read it."""

from __future__ import annotations

import io
import json
import wave
from email import message_from_bytes
from typing import get_args

import pytest

from llmgw.config.catalog import Task
from llmgw.engines.probes import TASKS_PROBED, one_token_check, with_key
from llmgw.router.fields import read_fields


def test_every_task_of_the_catalog_has_one() -> None:
    assert set(get_args(Task)) == TASKS_PROBED
    with pytest.raises(ValueError, match="dance"):
        one_token_check("dance", "m")


@pytest.mark.parametrize("task", sorted(TASKS_PROBED - {"transcription"}))
def test_a_probe_is_json_for_the_model(task: str) -> None:
    check = one_token_check(task, "org/m")
    assert json.loads(check.body or b"")["model"] == "org/m"
    assert check.headers == {"content-type": "application/json"}


def test_the_probe_of_a_speech_model_is_a_form_with_half_a_second_of_silence() -> None:
    check = one_token_check("transcription", "org/whisper")
    body = check.body or b""
    head = f"content-type: {check.headers['content-type']}\r\n\r\n".encode()
    model, file = message_from_bytes(head + body).get_payload()
    assert isinstance(model, type(file))
    assert model.get_payload() == "org/whisper"
    with wave.open(io.BytesIO(file.get_payload(decode=True))) as sound:
        assert sound.getframerate() == 16000
        assert sound.getnframes() == 8000
    fields = read_fields(body, check.headers["content-type"].encode())
    assert (fields.model, fields.stream) == ("org/whisper", False)


def test_a_key_is_added_to_what_a_probe_says_already() -> None:
    check = with_key(one_token_check("chat", "m"), "k")
    assert check.headers == {"content-type": "application/json", "authorization": "Bearer k"}
    assert with_key(check, None) is check
