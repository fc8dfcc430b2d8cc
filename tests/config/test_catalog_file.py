"""A catalog's own file: `models:` alone, or out of a whole server.yaml; and catalogs that were sent as data."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.config.base import format_duration, parse_duration_s
from llmgw.config.catalog import Catalog
from llmgw.config.errors import ConfigError
from llmgw.config.load import catalog_of, load_catalog_file, load_server_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "server.yaml"
ONE = "models:\n  - name: a\n    profiles:\n      - engine: sim\n"


def refused(tmp_path: Path, text: str) -> str:
    path = tmp_path / "catalog.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_catalog_file(path)
    return str(caught.value).replace(str(path), "catalog.yaml")


def test_a_file_of_models_alone_is_a_catalog(tmp_path: Path) -> None:
    path = tmp_path / "catalog.yaml"
    path.write_text(ONE)
    found = load_catalog_file(path)
    assert [model.name for model in found.catalog.models] == ["a"]
    assert found.ignored == ()


def test_of_a_whole_server_yaml_only_the_models_are_read_and_the_rest_is_named() -> None:
    found = load_catalog_file(EXAMPLE)
    assert found.catalog == load_server_config(EXAMPLE, {}).catalog
    assert {"listen", "state"} <= set(found.ignored)
    assert "models" not in found.ignored


def test_an_empty_list_that_is_written_out_is_an_empty_catalog(tmp_path: Path) -> None:
    path = tmp_path / "catalog.yaml"
    path.write_text("models: []\n")
    assert load_catalog_file(path).catalog == Catalog()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("listen: 127.0.0.1:1\n", "catalog.yaml: models: missing; an empty catalog stops everything"),
        ("\nmodels:\n", "catalog.yaml line 2: models: empty; an empty catalog stops everything"),
        ("modles: []\n", "catalog.yaml line 1: modles: unknown key; did you mean models?"),
        (ONE + "        replicas: -1\n", "line 5: models[0].profiles[0].replicas: must be at least 0, got -1"),
        (ONE + "        gpu: 1\n", "line 5: models[0].profiles[0].gpu: unknown key"),
        (ONE + ONE.partition("\n")[2], "line 5: models[1].name: the name 'a' belongs to both"),
        (ONE.replace("name: a", "name: a\n    aliases: [b]") * 1 + "  - name: b\n    endpoints: [{url: http://x}]\n",
         "models[1].name: the name 'b' belongs to both 'a' and 'b'"),
        (ONE + "    limits: {kv_cache: 95}\n",
         "line 5: models[0].limits.kv_cache: '95' is not a share above 0 and up to 1 (100%); write for example "
         "90% or 0.9; did you mean 95%?"),
        (ONE + "    limits: {kv_cache: full}\n", "models[0].limits.kv_cache: 'full' is not a share"),
        (ONE + "    limits: {waiting: 0}\n", "models[0].limits.waiting: must be at least 1, got 0"),
        (ONE + "    limits: {ttft_p95: soon}\n", "models[0].limits.ttft_p95: 'soon' is not a duration"),
        (ONE + "    limits: {ttft: 2s}\n", "models[0].limits.ttft: unknown key"),
        ("models: 7\n", "line 1: models: must be a list"),
        ("", "holds no keys"),
        ("- a\n", "must be keys with values"),
    ],
)  # fmt: skip
def test_what_is_no_catalog_gets_a_sentence_with_its_place(tmp_path: Path, text: str, sentence: str) -> None:
    assert sentence in refused(tmp_path, text)


def test_a_file_that_is_not_there_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no such file$"):
        load_catalog_file(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        load_catalog_file(tmp_path)


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        (7, "models: must be a list"),
        ([{"name": "a"}], "models[0]: model 'a' has neither profiles nor endpoints"),
        ([{"name": "a b", "endpoints": [{"url": "http://x"}]}], "models[0].name: 'a b' is not a model name"),
        ([{"name": "a", "profiles": [{"engine": "sim", "nodes": 0}]}], "models[0].profiles[0].nodes: must be"),
    ],
)
def test_data_that_is_no_catalog_gets_a_sentence_with_its_key(models: object, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog_of(models)
    assert sentence in str(caught.value)


@given(st.floats(min_value=0, max_value=999_999_999, allow_nan=False))
def test_every_duration_is_written_so_that_it_reads_back_the_same(seconds: float) -> None:
    assert parse_duration_s(format_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["1234567s", "100001.5s", "0.0001ms", "300", "1h30m", "0"])
def test_a_catalog_with_an_odd_duration_reads_back_from_the_store_s_json(text: str) -> None:
    profile = {"engine": "sim", "load_timeout": text}
    catalog = Catalog.model_validate({"models": [{"name": "a", "profiles": [profile]}]})
    assert Catalog.model_validate(catalog.model_dump(mode="json")) == catalog


@pytest.mark.parametrize("url", ["http://x/v1/v1", "http://x//v1", "http://x/v1/v1/"])
def test_an_endpoint_that_would_mean_another_place_when_it_is_read_twice_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="write it up to what precedes /v1"):
        catalog_of([{"name": "a", "endpoints": [{"url": url}]}])


@pytest.mark.parametrize("url", ["http://x", "http://x/v1/", "https://x/v1beta/v1", "http://x/prefix//"])
def test_an_endpoint_means_the_same_place_when_it_is_read_twice(url: str) -> None:
    catalog = catalog_of([{"name": "a", "endpoints": [{"url": url}]}])
    assert catalog_of(catalog.model_dump(mode="json")["models"]) == catalog


@pytest.mark.parametrize("key", ['args: ["a\\0b"]', 'env: {A: "a\\0b"}'])
def test_a_nul_character_for_an_engine_is_refused_with_its_key(tmp_path: Path, key: str) -> None:
    sentence = refused(tmp_path, ONE + f"        {key}\n")
    assert "NUL" in sentence
    assert "models[0].profiles[0]." in sentence
