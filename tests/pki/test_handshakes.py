"""The link between agents and server, by real handshakes over loopback."""

from __future__ import annotations

import socket
import ssl
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from llmgw.config.agent import AgentTls
from llmgw.config.server import AgentsTls
from llmgw.pki.authority import Authority
from llmgw.pki.errors import PkiError
from llmgw.pki.files import install_pair
from llmgw.pki.peer import peer_from_der
from llmgw.pki.tls import (
    ServerCertificate,
    agent_context,
    agents_server_context,
    explain_tls_error,
    reload_server_certificate,
    server_names,
)
from tests.pki.handshakes import DAY, agent_tls, dial, listening, server_tls, shake, unchecked_context


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def refusal(server: ssl.SSLContext, client: ssl.SSLContext, name: str = "127.0.0.1") -> str:
    """The sentence to which a refused handshake leads on the client."""
    with listening(server) as listener:
        with pytest.raises(OSError) as caught:  # noqa: PT011 - ssl raises several kinds; the sentence is the test
            dial(client, listener.port, name)
        sentence = explain_tls_error(caught.value, f"https://{name}:{listener.port}")
        assert f"{name}:{listener.port}" in sentence
        return sentence


def test_an_enrolled_node_is_known_by_its_name_and_address(server: ssl.SSLContext, node01: AgentTls) -> None:
    peer = peer_from_der(shake(server, agent_context(node01)))
    assert (peer.node_id, peer.address, peer.issuer) == ("node01", "10.0.0.1", "root")
    assert peer.origin == peer.serial


@pytest.mark.parametrize("node_id", ["node01", "gpu-7", "node01.lan", "a.b.home.arpa", "n1.internal", "0"])
def test_every_node_id_that_is_issued_passes_the_handshake(
    authority: Authority, server: ssl.SSLContext, tmp_path: Path, now: float, node_id: str
) -> None:
    tls = agent_tls(authority.issue_client(node_id, "fd00::7", now), tmp_path / "node")
    peer = peer_from_der(shake(server, agent_context(tls)))
    assert (peer.node_id, peer.address) == (node_id, "fd00::7")


@pytest.mark.parametrize(
    "host", ["localhost", "gw.lan", "a.b.internal", "10.1.2.3", "127.0.0.1", "::1", "fd12::9"]
)
def test_every_host_that_is_issued_passes_the_handshake_alone(
    authority: Authority, node01: AgentTls, tmp_path: Path, now: float, host: str
) -> None:
    tls = server_tls(authority, authority.issue_server([host], now), tmp_path / "alone")
    shake(agents_server_context(tls), agent_context(node01), name=host)


def test_openssls_strict_mode_takes_the_certificates(
    server: ssl.SSLContext, node01: AgentTls, tmp_path: Path
) -> None:
    client = agent_context(node01)
    for context in (server, client):
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    shake(server, client)


@pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6 loopback")
def test_a_server_is_reached_over_ipv6(server: ssl.SSLContext, node01: AgentTls) -> None:
    shake(server, agent_context(node01), name="::1", host="::1")


def test_a_server_of_another_authority_is_not_believed(node01: AgentTls, tmp_path: Path, now: float) -> None:
    other = Authority.create(tmp_path / "other", name="test", permit_dns=(), permit_ip=(), now=now, days=30)
    tls = server_tls(other, other.issue_server(["127.0.0.1"], now), tmp_path / "other-server")
    sentence = refusal(agents_server_context(tls), agent_context(node01))
    assert "comes from another authority" in sentence
    assert "tls.ca" in sentence


def test_a_client_of_another_authority_is_refused(
    server: ssl.SSLContext, node01: AgentTls, tmp_path: Path, now: float
) -> None:
    other = Authority.create(tmp_path / "other", name="test", permit_dns=(), permit_ip=(), now=now, days=30)
    foreign = agent_tls(other.issue_client("node01", "10.0.0.1", now), tmp_path / "foreign")
    with pytest.raises(PkiError, match=r"comes from another authority than the one in .* \(tls\.ca\)"):
        agent_context(AgentTls(ca=node01.ca, cert=foreign.cert, key=foreign.key))
    sentence = refusal(server, unchecked_context(node01.ca, foreign))
    assert "refuses this side's certificate: it comes from another authority" in sentence


def test_a_client_without_a_certificate_is_refused(server: ssl.SSLContext, node01: AgentTls) -> None:
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.load_verify_locations(node01.ca)
    assert "none was sent" in refusal(server, bare)


def test_an_expired_client_is_refused_and_told_so_before_it_dials(
    authority: Authority, server: ssl.SSLContext, tmp_path: Path, now: float
) -> None:
    past = now - 40 * DAY
    tls = agent_tls(authority.issue_client("node01", "10.0.0.1", past, days=30), tmp_path / "old")
    with pytest.raises(PkiError, match=r"agent\.pem \(tls\.cert\) expired on .* issue-client"):
        agent_context(tls, now)
    sentence = refusal(server, agent_context(tls, now=past))
    assert "refuses this side's certificate: it has expired" in sentence


def test_an_expired_server_is_refused_and_told_so_at_its_start(
    authority: Authority, node01: AgentTls, tmp_path: Path, now: float
) -> None:
    past = now - 40 * DAY
    tls = server_tls(authority, authority.issue_server(["127.0.0.1"], past, days=30), tmp_path / "old")
    with pytest.raises(PkiError, match=r"server\.pem \(agents\.tls\.cert\) expired on"):
        agents_server_context(tls, now)
    sentence = refusal(agents_server_context(tls, now=past), agent_context(node01))
    assert "has expired" in sentence
    assert "llmgw ctl cert renew" in sentence


def test_certificates_of_the_future_point_at_the_clock(
    authority: Authority, server: ssl.SSLContext, node01: AgentTls, tmp_path: Path, now: float
) -> None:
    future = now + 10 * DAY
    tls = agent_tls(authority.issue_client("node01", "10.0.0.1", future), tmp_path / "future")
    with pytest.raises(PkiError, match="this host's clock says"):
        agent_context(tls, now)
    assert "not valid yet" in refusal(server, agent_context(tls, now=future))
    early = server_tls(authority, authority.issue_server(["127.0.0.1"], future), tmp_path / "early")
    assert "not valid yet" in refusal(agents_server_context(early, now=future), agent_context(node01))


@pytest.mark.parametrize("dialled", ["127.0.0.1", "elsewhere.lan"])
def test_a_server_certificate_without_the_address_dialled_says_which_it_has(
    authority: Authority, node01: AgentTls, tmp_path: Path, now: float, dialled: str
) -> None:
    tls = server_tls(authority, authority.issue_server(["gw.lan", "10.0.0.9"], now), tmp_path / "gw")
    with listening(agents_server_context(tls)) as listener:
        with pytest.raises(ssl.SSLCertVerificationError) as caught:
            dial(agent_context(node01), listener.port, dialled)
        names = server_names(f"https://127.0.0.1:{listener.port}")
    assert names == ["gw.lan", "10.0.0.9"]
    bare = explain_tls_error(caught.value, f"https://{dialled}:8443")
    assert f"The certificate of {dialled}:8443 does not name {dialled}." in bare
    told = explain_tls_error(caught.value, f"https://{dialled}:8443", names=names)
    assert "but only gw.lan, 10.0.0.9" in told
    assert f"issue-server --host {dialled} --host gw.lan --host 10.0.0.9" in told


def test_a_node_cannot_play_the_server(
    authority: Authority, node01: AgentTls, tmp_path: Path, now: float
) -> None:
    impostor = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    local = agent_tls(authority.issue_client("node02", "127.0.0.1", now), tmp_path / "impostor")
    impostor.load_cert_chain(local.cert, local.key)
    assert "not a server's" in refusal(impostor, agent_context(node01))


def test_a_server_certificate_does_not_open_the_door_to_agents(
    server: ssl.SSLContext, agents_tls: AgentsTls
) -> None:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(agents_tls.ca)
    client.load_cert_chain(agents_tls.cert, agents_tls.key)
    assert "not a client certificate" in refusal(server, client)


def test_tls_below_1_2_is_not_spoken(server: ssl.SSLContext, node01: AgentTls) -> None:
    client = agent_context(node01)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    shake(server, client)
    assert server.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert client.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_a_new_server_certificate_is_taken_up_without_a_restart(
    authority: Authority, agents_tls: AgentsTls, node01: AgentTls, tmp_path: Path, now: float
) -> None:
    server = agents_server_context(agents_tls)
    watch = ServerCertificate(server, agents_tls)
    client = agent_context(node01)
    assert "does not name new.lan" in refusal(server, client, "new.lan")
    assert watch.refresh(now) is False
    server_tls(authority, authority.issue_server(["new.lan"], now), Path(agents_tls.cert).parent)
    assert watch.refresh(now) is True
    shake(server, client, name="new.lan")
    assert watch.findings() == []


def test_a_new_server_certificate_that_does_not_fit_leaves_the_old_one_in_use(
    authority: Authority, agents_tls: AgentsTls, node01: AgentTls, tmp_path: Path, now: float
) -> None:
    server = agents_server_context(agents_tls)
    watch = ServerCertificate(server, agents_tls)
    Path(agents_tls.cert).write_text(authority.issue_server(["new.lan"], now).cert_pem)
    with pytest.raises(PkiError, match="does not belong to the certificate"):
        reload_server_certificate(server, agents_tls)
    assert watch.refresh(now) is False
    (finding,) = watch.findings()
    assert "stays in use" in finding.what
    shake(server, agent_context(node01), name="gw.lan")


@pytest.mark.parametrize(
    ("broken", "content", "sentence"),
    [
        ("ca", None, r"There is no authority's root certificate \(tls\.ca\) at .* Copy ca\.pem"),
        ("ca", "nonsense", "holds no certificate in PEM form"),
        ("cert", None, r"There is no certificate \(tls\.cert\) at .* issue-client"),
        ("cert", "nonsense", "holds no certificate in PEM form"),
        ("key", None, r"There is no key \(tls\.key\) at"),
        ("key", "nonsense", "holds no private key in PEM form"),
    ],
)
def test_files_of_an_agent_that_cannot_be_used_get_a_sentence(
    node01: AgentTls, broken: str, content: str | None, sentence: str
) -> None:
    path = Path(getattr(node01, broken))
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(PkiError, match=sentence):
        agent_context(node01)


def test_swapped_certificates_get_a_sentence(
    authority: Authority, node01: AgentTls, agents_tls: AgentsTls
) -> None:
    with pytest.raises(PkiError, match="is a server certificate where a client certificate belongs"):
        agent_context(AgentTls(ca=node01.ca, cert=agents_tls.cert, key=agents_tls.key))
    with pytest.raises(PkiError, match="is a client certificate where a server certificate belongs"):
        agents_server_context(AgentsTls(ca=node01.ca, cert=node01.cert, key=node01.key))
    with pytest.raises(PkiError, match="is not a root"):
        agent_context(AgentTls(ca=node01.cert, cert=node01.cert, key=node01.key))


def test_certificate_and_key_may_share_one_file(
    authority: Authority, server: ssl.SSLContext, node01: AgentTls, tmp_path: Path, now: float
) -> None:
    one = str(tmp_path / "both.pem")
    issued = authority.issue_client("node02", "10.0.0.2", now)
    install_pair(one, one, issued.cert_pem, issued.key_pem)
    assert (
        peer_from_der(shake(server, agent_context(AgentTls(ca=node01.ca, cert=one, key=one)))).node_id == "node02"
    )
    assert stat.S_IMODE(Path(one).stat().st_mode) == 0o600


def test_a_key_with_a_passphrase_gets_a_sentence_instead_of_a_prompt(node01: AgentTls) -> None:
    key = load_pem_private_key(Path(node01.key).read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    Path(node01.key).write_bytes(locked)
    with pytest.raises(PkiError, match="is protected by a passphrase"):
        agent_context(node01)
