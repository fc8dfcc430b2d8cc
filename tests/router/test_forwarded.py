"""What is said of clients behind proxies reaches engines only when a trusted proxy said it."""

from __future__ import annotations

import asyncio

import pytest

from llmgw.config.origins import parse_network
from llmgw.router.forwarded import TrustedProxies
from tests.router.support import fleet_of, plain, post

SAID = (
    b"X-Forwarded-For: 203.0.113.7\r\nx-forwarded-proto: https\r\nForwarded: for=203.0.113.7\r\n"
    b"x-real-ip: 203.0.113.7\r\nX-Forwarded-For: 198.51.100.2\r\n"
)
NAMES = {"x-forwarded-for", "x-forwarded-proto", "forwarded", "x-real-ip"}


def test_anybody_elses_word_is_thrown_away(play) -> None:
    async def scenario(fleet) -> None:
        (engine,) = await fleet.serve(plain())
        assert (await fleet.ask(post(headers=SAID))).status == 200
        assert not NAMES & set(engine.requests[0].headers)

    play(scenario)


def test_a_trusted_proxys_word_goes_on_with_its_own_address(new_router, tmp_path) -> None:
    async def main() -> None:
        async with fleet_of(new_router("--trusted-proxy=10.0.0.0/8", "--trusted-proxy=127.0.0.1")) as fleet:
            (engine,) = await fleet.serve(plain())
            assert (await fleet.ask(post(headers=SAID))).status == 200
            seen = engine.requests[0].headers
            assert seen["x-forwarded-for"] == "203.0.113.7, 198.51.100.2, 127.0.0.1"
            assert (seen["x-forwarded-proto"], seen["forwarded"]) == ("https", "for=203.0.113.7")
            assert (await fleet.ask(post())).status == 200
            assert not NAMES & set(engine.requests[1].headers)
        async with fleet_of(new_router("--trusted-proxy=10.0.0.0/8", state=tmp_path / "other")) as fleet:
            (engine,) = await fleet.serve(plain())
            assert (await fleet.ask(post(headers=SAID))).status == 200
            assert not NAMES & set(engine.requests[0].headers)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("address", "trusted"),
    [
        ("10.1.2.3", True),
        ("11.1.2.3", False),
        ("::ffff:10.1.2.3", True),
        ("fd00::1", True),
        ("fe80::1%eth0", False),
        ("", False),
    ],
)
def test_networks_hold_addresses_however_sockets_write_them(address: str, trusted: bool) -> None:
    assert TrustedProxies(["10.0.0.0/8", "fd00::/16"]).trusts(address) is trusted


def test_a_network_is_an_address_or_cidr_or_refused_with_a_sentence() -> None:
    assert (parse_network("10.0.0.5"), parse_network("fd00::/8")) == ("10.0.0.5/32", "fd00::/8")
    for text in ("proxy.lan", "10.0.0.5/24", "10.0.0.0/99", "", "10.0.0.0/8, 11.0.0.0/8"):
        with pytest.raises(ValueError, match="is neither an address nor a network"):
            parse_network(text)
