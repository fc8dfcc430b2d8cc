"""A node's identity is proven: certificates for another node, expired, revoked, renewed and cloned ones."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from cryptography import x509

from llmgw.config.agent import AgentTls
from llmgw.pki.authority import Authority
from llmgw.pki.certificates import CLIENT_DAYS
from llmgw.pki.handout import write_files
from llmgw.pki.tls import agent_context
from llmgw.sim.demo_fleet import DemoFleet
from tests.endtoend.conftest import Running, RunningFleet, edited, llmgw, until

DAY_S = 86400.0
ENROLLED = {f"node0{number}": (f"127.0.0.2{number}", "ib-a") for number in range(1, 6)}
RUNNING = ["node01"]


class Machine:
    """A node without an agent: says what it likes over its own certificate."""

    def __init__(self, fleet: RunningFleet, node: str, folder: Path | None = None) -> None:
        home = folder or fleet.demo.folder / node
        tls = AgentTls(ca=str(home / "ca.pem"), cert=str(home / "agent.pem"), key=str(home / "agent-key.pem"))
        self._node = node
        self._client = httpx.Client(
            base_url=fleet.demo.agents, verify=agent_context(tls), trust_env=False, timeout=10
        )

    def post(self, body: bytes) -> httpx.Response:
        return self._client.post("/agent/v1/register", content=body)

    def say(self, call: str, body: Any) -> httpx.Response:
        return self._client.post(f"/agent/v1/{call}", json=body)

    def register(self, **changes: Any) -> httpx.Response:
        message = {
            "node_id": self._node,
            "boot_id": "boot",
            "instance": "one",
            "instance_started_at": 1.0,
            "counter": 1,
            "version": "0",
            "inventory": {},
            **changes,
        }
        return self.say("register", message)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    """Five enrolled nodes. node01 has an agent; half the life of node02's certificate is over."""

    def adjust(demo: DemoFleet) -> None:
        # Reached at every address of loopback, but certified for 127.0.0.1 and localhost only.
        with edited(demo.folder / "server.yaml") as config:
            config["agents"]["listen"] = f"0.0.0.0:{httpx.URL(demo.agents).port}"
        authority = Authority.open(demo.folder / "pki")
        old = authority.issue_client("node02", demo.nodes["node02"][0], time.time() - CLIENT_DAYS * DAY_S * 0.6)
        write_files(old, demo.folder / "node02")
        for node in set(ENROLLED) - set(RUNNING):
            del demo.nodes[node]  # enrolled, and not started

    running = RunningFleet(
        tmp_path_factory.mktemp("identity") / "demo",
        nodes=dict(ENROLLED),
        adjust=adjust,
        replicas_big=0,
        replicas_small=1,
    )
    try:
        until(lambda: len(running.get("nodes")) == len(RUNNING))
        yield running
    finally:
        running.close()


def authority(fleet: RunningFleet) -> Authority:
    return Authority.open(fleet.demo.folder / "pki")


def ctl_cert(fleet: RunningFleet, *arguments: str) -> None:
    done = llmgw("ctl", "cert", *arguments, "--pki", str(fleet.demo.folder / "pki"))
    assert done.returncode == 0, done.stderr


def agent(fleet: RunningFleet, folder: Path, node: str, **changes: Any) -> Running:
    """An agent with the files of `node` in a folder of its own, and changes to its configuration."""
    config = folder / "agent.yaml"
    config.write_text((fleet.demo.folder / node / "agent.yaml").read_text())
    with edited(config) as content:
        content |= {**changes, "supervisor": {"work_dir": str(folder / "work")}}
    return Running.llmgw("agent", "--config", str(config), log=folder / "agent.log")


def serial_in(path: Path) -> int:
    return x509.load_pem_x509_certificates(path.read_bytes())[0].serial_number


def test_a_certificate_for_another_node_is_refused_and_both_sides_say_so(
    fleet: RunningFleet, tmp_path: Path
) -> None:
    words = "the certificate is 'node03''s, but the message claims to be 'node09'"
    with agent(fleet, tmp_path, "node03", node_id="node09") as impostor:
        impostor.says(words)
        until(lambda: words in fleet.demo.last_words("server", 200), 5)
    assert "node09" not in {node["node_id"] for node in fleet.get("nodes")}


def test_a_server_whose_certificate_lacks_the_address_dialled_is_not_believed(
    fleet: RunningFleet, tmp_path: Path
) -> None:
    port = httpx.URL(fleet.demo.agents).port
    with agent(fleet, tmp_path, "node03", server=f"https://127.0.0.9:{port}") as lost:
        lost.says(f"The certificate of 127.0.0.9:{port} does not name 127.0.0.9 but only ")
        assert "127.0.0.1" in lost.output
        assert "localhost" in lost.output
        assert "llmgw ctl cert issue-server --host 127.0.0.9" in lost.output


def test_an_expired_certificate_is_said_before_dialling_and_refused_by_the_server(
    fleet: RunningFleet, tmp_path: Path
) -> None:
    expired = authority(fleet).issue_client("node03", "127.0.0.23", time.time() - 3 * DAY_S, days=1)
    files = write_files(expired, tmp_path / "expired")
    with agent(fleet, tmp_path, "node03", tls=files) as late:
        assert late.process.wait(20) == 1
        assert "expired on" in late.output
        assert "issue-client" in late.output
        assert "Traceback" not in late.output
    context = ssl.create_default_context(cafile=files["ca"])
    context.load_cert_chain(files["cert"], files["key"])
    with httpx.Client(verify=context, trust_env=False) as client, pytest.raises(Exception, match=r"(?i)expired"):
        client.post(f"{fleet.demo.agents}/agent/v1/poll", json={"session": "x"})
    until(lambda: "has expired" in fleet.demo.last_words("server", 200), 5)


def test_without_a_certificate_of_ours_nobody_is_heard(fleet: RunningFleet, tmp_path: Path) -> None:
    ca = str(fleet.demo.folder / "pki" / "ca.pem")
    foreign = Authority.create(tmp_path / "pki", permit_ip=["127.0.0.0/8"], now=time.time())
    files = write_files(foreign.issue_client("node09", "127.0.0.21", time.time()), tmp_path / "files")
    nameless = ssl.create_default_context(cafile=ca)
    stranger = ssl.create_default_context(cafile=ca)
    stranger.load_cert_chain(files["cert"], files["key"])
    for context, words in ((nameless, r"(?i)certificate.required"), (stranger, r"(?i)unknown.ca")):
        with httpx.Client(verify=context, trust_env=False) as client, pytest.raises(Exception, match=words):
            client.post(f"{fleet.demo.agents}/agent/v1/poll", json={"session": "x"})
    with httpx.Client(trust_env=False, timeout=1) as client, pytest.raises(httpx.TransportError):
        client.post(fleet.demo.agents.replace("https", "http") + "/agent/v1/poll", json={"session": "x"})
    with agent(fleet, tmp_path, "node01", node_id="node09", tls={**files, "ca": ca}) as foreigner:
        assert foreigner.process.wait(20) == 1
        assert "comes from another authority" in foreigner.output


def test_a_certificate_past_half_its_life_is_renewed_by_itself_and_ends_with_its_enrolment(
    fleet: RunningFleet,
) -> None:
    home = fleet.demo.folder / "node02"
    enrolled = serial_in(home / "agent.pem")
    fleet.demo.start_agent("node02")
    until(
        lambda: "certificate renewed" in fleet.demo.last_words("node02", 50),
        40,
        lambda: fleet.demo.last_words("node02", 50),
    )
    renewed = x509.load_pem_x509_certificates((home / "agent.pem").read_bytes())
    assert len(renewed) == 2, "the renewal authority's certificate goes with it"
    assert renewed[0].serial_number != enrolled
    assert renewed[0].not_valid_before_utc.timestamp() > time.time() - 600
    assert (home / "agent-key.pem").stat().st_mode & 0o777 == 0o600
    until(lambda: fleet.node("node02")["certificate_expires_at"] > time.time() + CLIENT_DAYS * DAY_S * 0.9)
    until(lambda: fleet.node("node02")["last_heard_s"] < 2)
    renewed_machine = Machine(fleet, "node02")
    assert renewed_machine.register().status_code == 409, "the agent itself still speaks, with the new one"

    ctl_cert(fleet, "revoke", "node02")
    until(lambda: "was revoked" in fleet.demo.last_words("node02", 50), 10)
    assert renewed_machine.register().status_code == 403


def test_a_revoked_node_is_refused_in_mid_conversation_and_enrolled_again_without_a_restart(
    fleet: RunningFleet,
) -> None:
    session = (machine := Machine(fleet, "node03")).register().json()["session"]
    assert machine.say("report", {"session": session}).status_code == 200
    ctl_cert(fleet, "revoke", "node03")
    for call in ("report", "poll"):
        refused = machine.say(call, {"session": session})
        assert refused.status_code == 403
        assert refused.json()["code"] == "revoked"
        assert "issue-client node03" in refused.json()["message"]
    folder = fleet.demo.folder / "again"
    ctl_cert(fleet, "issue-client", "node03", "--address", "127.0.0.23", "--out", str(folder))
    again = Machine(fleet, "node03", folder)
    assert again.register(counter=2).status_code == 200
    assert machine.register(counter=3).status_code == 403, "the old certificate stays revoked"


def test_a_new_server_certificate_is_shown_without_a_restart_and_a_broken_one_is_a_problem(
    fleet: RunningFleet,
) -> None:
    def shown() -> int:
        context = ssl.create_default_context(cafile=str(fleet.demo.folder / "pki" / "ca.pem"))
        context.load_cert_chain(
            str(fleet.demo.folder / "node04" / "agent.pem"), str(fleet.demo.folder / "node04" / "agent-key.pem")
        )
        with httpx.Client(verify=context, trust_env=False) as client:
            answer = client.post(f"{fleet.demo.agents}/agent/v1/poll", json={"session": "x"})
            der = answer.extensions["network_stream"].get_extra_info("ssl_object").getpeercert(True)
        return x509.load_der_x509_certificate(der).serial_number

    first = shown()
    pid = fleet.demo.pid("server")
    fresh = fleet.demo.folder / "fresh"
    ctl_cert(fleet, "issue-server", "--host", "127.0.0.1", "--host", "localhost", "--out", str(fresh))
    for name in ("server-key.pem", "server.pem"):
        (fleet.demo.folder / name).write_bytes((fresh / name).read_bytes())
    until(lambda: shown() == serial_in(fresh / "server.pem") != first, 10)
    (fleet.demo.folder / "server.pem").write_text("not a certificate")
    until(lambda: "The earlier certificate stays in use" in fleet.ctl("status").stdout, 10)
    assert shown() == serial_in(fresh / "server.pem")
    (fleet.demo.folder / "server.pem").write_bytes((fresh / "server.pem").read_bytes())
    until(lambda: "The earlier certificate" not in fleet.ctl("status").stdout, 10)
    assert fleet.demo.pid("server") == pid


def test_a_cloned_machine_is_refused_loudly_while_the_first_speaks(fleet: RunningFleet) -> None:
    until(lambda: fleet.node("node01")["last_heard_s"] < 3)
    clone = Machine(fleet, "node01")
    for counter in (1, 2, 3):
        refused = clone.register(boot_id="another machine's", counter=counter)
        assert refused.status_code == 409
        assert "node01" in refused.json()["message"]
        assert "another machine" in refused.json()["message"]
    for shown in (fleet.ctl("status").stdout, fleet.ctl("nodes", "node01").stdout):
        assert "another machine that calls itself node01 still speaks" in shown
        assert "give the clone a host name of its own" in shown
    assert [event for event, _ in fleet.history("node01")].count("clone refused") == 1
    heard = fleet.node("node01")["last_heard_s"]
    assert heard < 5, "the first goes on"


def test_messages_of_an_older_life_are_refused(fleet: RunningFleet) -> None:
    machine = Machine(fleet, "node04")
    old = machine.register(counter=1).json()["session"]
    new = machine.register(counter=2).json()["session"]
    for call in ("poll", "report"):
        over = machine.say(call, {"session": old})
        assert over.status_code == 410
        assert "register again" in over.json()["message"]
    assert machine.say("report", {"session": new}).status_code == 200
    older = machine.register(counter=1)
    assert older.status_code == 409
    assert machine.say("report", {"session": new}).status_code == 200, "and changes nothing"
    assert machine.register(instance="two", instance_started_at=2.0).status_code == 200
    assert machine.register(instance="one", counter=9).status_code == 409, "an earlier process of the same boot"
    assert Machine(fleet, "node05").say("report", {"session": new}).status_code in (403, 410)
    another = Machine(fleet, "node05").register().json()["session"]
    stolen = machine.say("report", {"session": another})
    assert stolen.status_code == 403
    assert "node04" in stolen.json()["message"]


def gpus(count: int) -> list[dict[str, Any]]:
    return [{"index": number, "uuid": f"GPU-{number}", "name": "x"} for number in range(count)]


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"inventory": {"ports": [{"adapter": "mlx5_0", "port": 1}] * 2}}, 400, "mlx5_0 is listed twice"),
        ({"inventory": {"gpus": gpus(10_000)}}, 400, "gpus"),
        ({"inventory": {"gpus": gpus(1) * 2}}, 400, "GPU is listed twice"),
        ({"node_id": "node05/../node01"}, 400, "node_id"),
        ({"node_id": "node01"}, 403, "claims to be 'node01'"),
        ({"held": [{"spec": {}, "phase": "ready"}]}, 400, "shard_id"),
        ({"counter": "one"}, 400, "counter"),
        ({"version": "x" * 17_000_000}, 413, "larger than"),
    ],
)
def test_a_registration_that_cannot_be_meant_is_refused_with_a_sentence(
    fleet: RunningFleet, changes: dict[str, Any], status: int, words: str
) -> None:
    refused = Machine(fleet, "node05").register(boot_id="fifth", **changes)
    assert refused.status_code == status, refused.text
    assert words in refused.json()["message"]
    assert "node05" not in {node["node_id"] for node in fleet.get("nodes")} or not fleet.node("node05")["gpus"]


def test_a_message_that_is_nested_without_end_is_refused_with_a_sentence(fleet: RunningFleet) -> None:
    nested = msgspec.Raw(b"[" * 50_000 + b"]" * 50_000)
    answer = Machine(fleet, RUNNING[0]).post(msgspec.json.encode({"unknown": nested}))
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed")
    assert "nested" in answer.json()["message"]


def test_a_heartbeat_is_held_to_what_a_registration_is(fleet: RunningFleet) -> None:
    machine = Machine(fleet, "node05")
    answer = machine.register(instance="three", instance_started_at=9.0)
    session = answer.json()["session"]
    for inventory, words in (
        ({"ports": [{"adapter": "mlx5_0", "port": 1}] * 2}, "mlx5_0 is listed twice"),
        ({"gpus": gpus(1) * 2}, "GPU is listed twice"),
    ):
        refused = machine.say("report", {"session": session, "inventory": inventory})
        assert refused.status_code == 400
        assert words in refused.json()["message"]


def test_what_an_agent_says_without_end_is_cut_where_it_enters(fleet: RunningFleet) -> None:
    machine = Machine(fleet, "node05")
    long = "x" * 1_000_000
    finding = {"check": "long", "severity": "warning", "where": "node05", "what": long}
    inventory = {"findings": [finding]}

    def told() -> int:
        return max(len(each["what"]) for each in fleet.node("node05")["findings"] if each["check"] == "long")

    registered = machine.register(instance="four", instance_started_at=10.0, inventory=inventory)
    assert registered.status_code == 200, registered.text
    assert told() == 2000
    reported = machine.say("report", {"session": registered.json()["session"], "inventory": inventory})
    assert reported.status_code == 200, reported.text
    assert told() == 2000


def test_a_server_that_is_killed_knows_the_last_life_of_each_node_afterwards(fleet: RunningFleet) -> None:
    earlier = {"instance": "earlier", "instance_started_at": 40.0, "counter": 9}
    last = {"instance": "last", "instance_started_at": 50.0}
    assert Machine(fleet, "node04").register(counter=5, **last).status_code == 200
    until(lambda: fleet.node("node04")["state"] == "ready")
    fleet.demo.kill_server()
    fleet.demo.start_server()
    fleet.run(fleet.demo.wait_for_admin())
    machine = Machine(fleet, "node04")
    late = machine.register(**earlier)
    assert (late.status_code, "this one is superseded" in late.json()["message"]) == (409, True)
    again = machine.register(counter=5, **last)
    assert (again.status_code, "already taken" in again.json()["message"]) == (409, True)
    assert machine.register(counter=6, **last).status_code == 200
