"""What a source is, where a fetched file lies, and which URLs are refused without being repeated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.config.catalog import Catalog
from llmgw.config.errors import ConfigError
from llmgw.config.load import catalog_of
from llmgw.config.sizes import format_size, parse_size
from llmgw.config.sources import SourceError, checksum_problem, read_source
from llmgw.fleet.catalog_diff import rolled_by


@pytest.mark.parametrize(
    ("text", "kind", "names"),
    [
        ("", "none", []),
        ("org/name", "name", []),
        ("models/file.gguf", "name", []),
        ("s3://bucket/model", "name", []),
        ("/models/file.gguf", "path", []),
        ("./file.gguf", "path", []),
        ("../file.gguf", "path", []),
        (".hidden", "name", []),
        ("https://h.org/a/b.gguf", "url", ["https/h.org/a/b.gguf"]),
        ("HTTPS://H.org:443/a/b.gguf", "url", ["https/h.org/a/b.gguf"]),
        ("http://h:8000/b%20c.gguf", "url", ["http/h:8000/b c.gguf"]),
        ("http://[::1]:8000/b.gguf", "url", ["http/[::1]:8000/b.gguf"]),
        ("file:///share/b.gguf", "url", ["file/share/b.gguf"]),
        ("https://h/b.gguf?download=true", "url", ["https/h/query-0fc4a3ff5e5d/b.gguf"]),
        (
            "https://h/b-00002-of-00002.gguf",
            "url",
            ["https/h/b-00001-of-00002.gguf", "https/h/b-00002-of-00002.gguf"],
        ),
    ],
)
def test_a_source_is_sorted_and_its_files_get_names(text: str, kind: str, names: list[str]) -> None:
    source = read_source(text)
    assert source.kind == kind
    shown = [file.name for file in source.files]
    assert [name.partition("query-")[0] for name in shown] == [name.partition("query-")[0] for name in names]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("https://user:hunter2@h/b.gguf", "user or password"),
        ("https://h/b.gguf?token=hunter2", "'token' in its query"),
        ("https://h/b.gguf?X-Amz-Signature=hunter2", "looks like a secret"),
        ("https://h/b.gguf?sig=hunter2", "looks like a secret"),
        ("https://h/b.gguf#hunter2", "has a #fragment"),
        ("https://h/../../etc/passwd", "dots"),
        ("https://h/a/%2e%2e/b.gguf", "dots"),
        ("https://h/a%2Fb.gguf", "empty part, dots or control"),
        ("https://h/a%00b.gguf", "control characters"),
        ("https://h//b.gguf", "empty part"),
        ("https://h/", "names no file"),
        ("https://h", "names no file"),
        ("https:///b.gguf", "names no host"),
        ("https://h:port/b.gguf", "host or port cannot be read"),
        ("https://h/a b.gguf", "spaces"),
        ("https://h/" + "x" * 300, "more than"),
        ("https://h/" + "x/" * 2000 + "y", "longer than"),
        ("https://h/b.gguf.part", "rename it"),
        ("file://server/b.gguf", "names another host"),
        ("file:///b.gguf?x=1", "has a query"),
    ],
)
def test_a_url_that_cannot_be_meant_is_a_sentence_without_its_secrets(text: str, part: str) -> None:
    with pytest.raises(SourceError) as refused:
        read_source(text)
    assert part in str(refused.value)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigError) as told:
        catalog_of([{"name": "a", "source": text, "profiles": [{"engine": "llamacpp"}]}])
    assert part in str(told.value)
    assert "hunter2" not in str(told.value)


@given(st.text(min_size=1, max_size=60))
def test_no_url_leads_out_of_the_weights_folder(path: str) -> None:
    try:
        source = read_source(f"https://h/{path}")
    except SourceError:
        return
    for file in source.files:
        parts = file.name.split("/")
        assert parts[:2] == ["https", "h"]
        assert not {"", ".", ".."} & set(parts)
        assert "\0" not in file.name


def test_a_checksum_is_of_one_file_that_is_fetched() -> None:
    good = "sha256:" + "0" * 64
    assert checksum_problem(good, read_source("https://h/b.gguf")) is None
    assert "64 digits" in (checksum_problem("md5:1", read_source("https://h/b.gguf")) or "")
    assert "no https://" in (checksum_problem(good, read_source("/b.gguf")) or "")
    assert "in 2 files" in (checksum_problem(good, read_source("https://h/b-00001-of-00002.gguf")) or "")


def test_a_checksum_is_part_of_the_form_and_deadlines_are_not() -> None:
    def catalog(checksum: str | None = None, **profile: str) -> Catalog:
        model = {"name": "a", "source": "https://h/b.gguf", "profiles": [{"engine": "llamacpp", **profile}]}
        return Catalog.model_validate({"models": [{**model, "checksum": checksum}]})

    before = catalog().find("a", "default")
    other = catalog("sha256:" + "0" * 64).find("a", "default")
    slow = catalog(fetch_timeout="1d", fetch_stall_limit="1h").find("a", "default")
    assert before is not None
    assert other is not None
    assert slow is not None
    assert rolled_by(before, other) == ["checksum"]
    assert rolled_by(before, slow) == []


@given(st.integers(0, 2**60 - 1))
def test_every_size_is_written_so_that_it_reads_back_the_same(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "size"), [("10GiB", 10 * 2**30), ("1.5 MB", 1_500_000), ("7", 7), (7, 7), ("2KB", 2000)]
)
def test_sizes_read_as_they_are_meant(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "10 apples", "-1", "1e9", "10Gib", True, "9999999TiB"])
def test_what_is_no_size_is_a_sentence(text: object) -> None:
    with pytest.raises(ValueError, match="write for example"):
        parse_size(text)
