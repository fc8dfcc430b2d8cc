"""From five bare machines to a fleet that serves, and what then happens to it: as an operator would type it, on
real systemd over real ssh. The tests go on from each other, in this order."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmgw import __version__
from llmgw.sim.fabric.change import set_sm_lid
from tests.lab.machines import lab as machines
from tests.lab.machines.places import FLEET, SERVER
from tests.lab.operator import (
    AGENTS,
    CLIENTS_KEY,
    Fleet,
    Said,
    engines,
    gpus_used_twice,
    is_at_work,
    llmgw,
    main_pid,
    on,
    onboard,
    put,
    running_lab,
)
from tests.lab.real_fabric import wait_for
from tests.lab.release_files import ReleaseFiles

pytestmark = [
    pytest.mark.lab,
    pytest.mark.goes_on,
    pytest.mark.timeout(300),
]
NODES = ["node01", "node02", "node03", "node04"]
LOST_AFTER_S, SETTLE_S = 8, 5
NEWER = "0.1.7"
# Agents that speak often, so that silence is told from a pause in seconds.
AGENT_ENV = "LLMGW_AGENT__HEARTBEAT_INTERVAL=1s\nLLMGW_AGENT__RECONNECT_MAX=2s\n"
AGENT_UNIT = "[Service]\nRestartSec=1s\n"
RELEASE_KEY = "--release-key /root/release.pub"


def models(replicas: int) -> dict[str, Any]:
    """A catalog with one model on two nodes at a time, and one on one."""
    return {
        "models": [
            {
                "name": name,
                "profiles": [
                    {
                        "engine": "sim",
                        "nodes": nodes,
                        "gpus_per_node": gpus,
                        "replicas": replicas,
                        "rendezvous_timeout": "30s",
                        "args": ["--load-s", "0.5", "--tokens-per-s", "100"],
                    }
                ],
            }
            for name, nodes, gpus in (("demo/big", 2, 3), ("demo/small", 1, 1))
        ]
    }


class Lab:
    """The fleet of this module, and the files that its machines are given."""

    def __init__(self, files: ReleaseFiles) -> None:
        self.files = files
        self.fleet = Fleet()

    def give(self, file: Path) -> str:
        """Copy a file of a release and its signature to the control host; its path there."""
        for path in (file, file.with_name(f"{file.name}.sig")):
            put(SERVER, path, f"/root/{path.name}")
        return f"/root/{file.name}"


@pytest.fixture(scope="module")
def lab(needs_machines: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if sys.version_info[:2] != (3, 11):
        pytest.skip(
            "the machines have Debian's Python 3.11, for which another Python cannot pack its installation"
        )
    files = ReleaseFiles(tmp_path_factory.mktemp("release") / "files", newer=NEWER)
    # A lab that is gone on with has its program.
    if not machines.status()["up"]:
        files.begin()
    with running_lab():
        made = Lab(files)
        try:
            yield made
        finally:
            made.fleet.close()


def test_a_bare_machine_becomes_the_control_host(lab: Lab) -> None:
    file, name = lab.give(lab.files.wheels), lab.files.wheels.name
    installer = (Path(__file__).parent.parent.parent / "llmgw/release/install.sh").read_text()
    said = on(SERVER, f"sh -s -- {file} {name} $(sha256sum {file} | cut -d' ' -f1)", stdin=installer)
    assert said.out.splitlines()[-1] == f"installed {__version__}"
    would = llmgw("server install --listen 0.0.0.0:8080 --dry-run")
    assert "Nothing was changed" in would
    assert "would make the user llmgw" in would
    llmgw("server install --listen 0.0.0.0:8080 --host server.internal --routers 2")
    for unit in ("llmgw-server", "llmgw-router@0", "llmgw-router@1", "llmgw-router.socket"):
        assert on(SERVER, f"systemctl is-active {unit}; systemctl is-enabled {unit}").out == "active\nenabled\n"
    assert on(SERVER, "stat -c %U:%a /etc/llmgw/server-key.pem").out == "llmgw:600\n"
    assert "Nothing differed" in llmgw("server install")


def test_the_servers_settings_are_its_operators(lab: Lab) -> None:
    path = FLEET[SERVER].root / "etc/llmgw/server.yaml"
    settings = {
        "liveness": {"settle": f"{SETTLE_S}s", "lost_after": f"{LOST_AFTER_S}s"},
        "fabrics": {"managers_interval": "1s", "map_interval": "2s"},
    }
    path.write_text(path.read_text() + yaml.safe_dump(settings))
    llmgw("server --config /etc/llmgw/server.yaml --check")
    on(SERVER, "systemctl restart llmgw-server")
    on(SERVER, f"umask 077; llmgw ctl keys create clients > {CLIENTS_KEY}")


def test_what_ssh_and_the_node_say_no_to_is_a_sentence_and_changes_nothing(lab: Lab) -> None:
    on("node03", "useradd -m asks && install -D -o asks /root/.ssh/authorized_keys ~asks/.ssh/authorized_keys")
    on("node03", "useradd -m stranger")
    # A user whose sudo wants a password, and one whom no key lets in.
    assert "sudo" in (said := onboard("node03", "--ssh-user asks", code=1)), said
    assert "password" in said
    said = onboard("node03", "--ssh-user stranger", code=1)
    assert "password" in said or "key" in said, said

    known = FLEET[SERVER].root / "root/.ssh/known_hosts"
    remembered = known.read_text()
    mine, other = (known_key(remembered, name) for name in ("node03", "node04"))
    known.write_text(remembered.replace(mine, other))
    said = onboard("node03", code=1)
    known.write_text(remembered)
    assert "host key" in said, said
    assert "ssh-keygen -f /root/.ssh/known_hosts -R" in said, said

    said = onboard("node03", code=1, address=FLEET["node04"].address)
    assert "node04" in said, said

    on("node03", "dpkg --force-depends -r python3.11-venv python3-venv")
    said = onboard("node03", code=1)
    assert "python3-venv" in said, said
    assert "Wheel" not in said
    on("node03", "mount -t tmpfs -o size=8M none /opt")
    said = onboard("node03", f"--binary {lab.give(lab.files.folder)}", code=1)
    on("node03", "umount /opt")
    assert "Make room" in said, said
    assert on("node03", "ls /etc/llmgw /usr/local/bin/llmgw 2>&1", code=2).out.count("No such file") == 2


def known_key(remembered: str, name: str) -> str:
    [line] = [line for line in remembered.splitlines() if line.startswith(f"{name},")]
    return line.split()[2]


def test_a_run_that_was_killed_leaves_the_node_to_what_it_had_begun(lab: Lab) -> None:
    for name in NODES:
        etc = FLEET[name].root / "etc"
        (etc / "llmgw").mkdir(exist_ok=True)
        (etc / "llmgw/agent.env").write_text(AGENT_ENV)
        (etc / "systemd/system/llmgw-agent.service.d/soon.conf").write_text(AGENT_UNIT)
    (FLEET[SERVER].root / "root/release.pub").write_bytes(lab.files.public_key)
    command = f"llmgw onboard-node --node node01 --addr {FLEET['node01'].address} --server {AGENTS} --fabric ib-a"
    on(SERVER, f"systemd-run --quiet --collect --unit interrupted {command}")
    wait_for(
        lambda: on("node01", "ls -d /opt/llmgw/.new-*", code=None).code == 0, "the program is being installed"
    )
    on(SERVER, "systemctl kill --signal=KILL interrupted")
    said = onboard("node01", code=1)
    assert "Another run of onboard-node works on node01" in said, said


def test_four_nodes_are_onboarded_with_files_of_either_kind_and_the_interrupted_run_is_completed(
    lab: Lab,
) -> None:
    file = lab.give(lab.files.folder)

    def bring_in(node: str) -> Said:
        if node != "node01":
            return onboard(node, f"--binary {file} {RELEASE_KEY}")
        wait_for(lambda: not is_at_work(node), "the killed run's installation has ended")
        return onboard(node, RELEASE_KEY)

    with ThreadPoolExecutor() as pool:
        said = dict(zip(NODES, pool.map(bring_in, NODES), strict=True))
    for node in NODES:
        assert f"{node} is there" in said[node], said[node]
    assert "its own stays" in said["node01"], said["node01"]
    assert on("node01", "ls -d /opt/llmgw/.new-* /tmp/llmgw* /var/tmp/*llmgw* 2>/dev/null", code=None).out == ""
    table = llmgw("ctl nodes").out
    assert all(f"{node}  ready" in table for node in NODES), table
    for node in NODES:
        assert on(node, "systemctl is-enabled llmgw-agent").out == "enabled\n"
        assert on(node, "stat -c %U:%a /etc/llmgw/agent-key.pem").out == "root:600\n"
        # Whether a limit can be raised is a matter of what this machine itself may do.
        assert on(node, "systemctl show --value --property=LimitMEMLOCK llmgw-agent").out == "infinity\n"
    # The system believes the authority.
    on(
        "node02",
        "openssl verify /etc/llmgw/agent.pem 2>/dev/null || "
        "python3 -c \"import ssl; assert any('llmgw' in str(c) for c in "
        'ssl.create_default_context().get_ca_certs())"',
    )
    assert "python3.11-venv" not in on("node03", "dpkg -l python3.11-venv 2>&1 | grep ^ii", code=1)


def test_models_are_served_by_replicas_of_two_nodes_one_on_each_fabric(lab: Lab) -> None:
    _apply(models(replicas=0))
    # Where the map has a node is preferred to where it does not yet, and which fabric is mapped first is chance.
    wait_for(
        lambda: (said := llmgw("ctl explain demo/big")) and "alike" in said and said, "the fabrics are alike"
    )
    _apply(models(replicas=2))
    lab.fleet.wait_ready()
    assert lab.fleet.nodes_of("demo/big") == [["node01", "node02"], ["node03", "node04"]]
    with lab.fleet.load() as load:
        pass
    assert load.counts()["served"] > 3


def _apply(catalog: dict[str, Any]) -> None:
    (FLEET[SERVER].root / "root/models.yaml").write_text(yaml.safe_dump(catalog))
    llmgw("ctl apply /root/models.yaml --yes")


def test_onboarding_again_changes_nothing_and_engines_go_on(lab: Lab) -> None:
    before = {node: (engines(node), main_pid(node, "llmgw-agent")) for node in ("node01", "node02")}
    said = json.loads(onboard("node02", "-o json").out)
    assert [step["name"] for step in said["steps"] if step["changed"]] == []
    assert "nothing differs" in onboard("node01")
    assert {node: (engines(node), main_pid(node, "llmgw-agent")) for node in before} == before


def test_a_killed_agent_is_started_by_systemd_and_its_engines_are_the_same(lab: Lab) -> None:
    before = engines("node01")
    assert before
    replicas = lab.fleet.replica_ids()
    old = main_pid("node01", "llmgw-agent")
    with lab.fleet.load():
        on("node01", f"kill -9 {old}")
        wait_for(lambda: main_pid("node01", "llmgw-agent") not in (0, old), "systemd has started another")
        wait_for(lambda: lab.fleet.node("node01").get("last_heard_s", 99) < 3, "it is heard")
        wait_for(
            lambda: on("node01", "systemctl is-active llmgw-agent", code=None).out == "active\n", "it is ready"
        )
    assert engines("node01") == before
    assert lab.fleet.replica_ids() == replicas


def test_server_and_routers_are_restarted_under_load_and_nothing_fails(lab: Lab) -> None:
    before = {node: engines(node) for node in NODES}
    routers = {}
    with lab.fleet.load() as load:
        for unit in ("llmgw-server", "llmgw-router@0", "llmgw-router@1"):
            old, served = main_pid(SERVER, unit), load.counts()["served"]
            on(SERVER, f"systemctl restart {unit}")
            new = wait_for(lambda: (now := main_pid(SERVER, unit)) not in (0, old) and now, "another one runs")  # noqa: B023
            wait_for(lambda: load.counts()["served"] > served + 4, "requests are served")  # noqa: B023
            if unit != "llmgw-server":
                routers[unit] = new
        old = main_pid(SERVER, "llmgw-server")
        on(SERVER, f"kill -9 {old}")
        wait_for(lambda: main_pid(SERVER, "llmgw-server") not in (0, old), "systemd has started another")
        wait_for(lambda: not lab.fleet.get("server")["settling"], "it has settled")
    assert {unit: main_pid(SERVER, unit) for unit in routers} == routers, "nobody told them to end"
    lab.fleet.wait_ready()
    assert {node: engines(node) for node in NODES} == before


def test_a_link_to_the_server_that_is_cut_rebuilds_nothing_while_others_are_upgraded_and_a_fabrics_manager_dies(
    lab: Lab,
) -> None:
    newer = lab.give(lab.files.newer)
    replicas = lab.fleet.replica_ids()
    before = {node: engines(node) for node in NODES}
    fabric = lab.fleet.fabric("ib-a")
    assert len(fabric["standbys"]) == 1, fabric
    with ThreadPoolExecutor() as pool, lab.fleet.load():
        machines.cut("node03", from_server=True)
        over = time.monotonic() + 40
        lab.fleet.wait_state("node03", "unreachable")
        command = f"ctl upgrade --to {newer} --nodes node03,node01,node02,node04"
        upgrade = pool.submit(llmgw, command, code=1, timeout_s=250)
        _subnet_manager_dies(lab, fabric)
        while time.monotonic() < over or not upgrade.done():
            assert lab.fleet.replica_ids() == replicas
            time.sleep(0.5)
        machines.heal("node03")
        lab.fleet.wait_state("node03", "ready")
    said = upgrade.result()
    assert "3 of 4" in said, said
    assert "its agent was not there to be asked: node03 is unreachable" in said, said
    assert [lab.fleet.node(node)["version"] for node in NODES] == [NEWER, NEWER, __version__, NEWER]
    assert lab.fleet.replica_ids() == replicas
    assert {node: engines(node) for node in NODES} == before


def _subnet_manager_dies(lab: Lab, before: dict[str, Any]) -> None:
    machines.kill("ib-a-sm1")
    [standby] = before["standbys"]
    now = wait_for(
        lambda: (
            (found := lab.fleet.fabric("ib-a"))["master"] and found["master"]["guid"] == standby["guid"] and found
        ),
        "the standby is master",
    )
    assert now["id"] == before["id"]
    assert now["standbys"] == []
    # The kernel is told by the new master; the simulated one by us.
    for node in ("node01", "node02"):
        set_sm_lid(FLEET[node].hardware, now["master"]["lid"])
    changes = lab.fleet.get("fabrics/ib-a/changes")["changes"]
    assert [one["after"] for one in changes if one["kind"] == "master changed"] == [standby["guid"]]
    assert "master changed" in llmgw("ctl fabric changes ib-a")


def test_the_agent_that_was_skipped_is_upgraded_under_load_and_the_others_are_let_be(lab: Lab) -> None:
    before = {node: engines(node) for node in NODES}
    others = {node: main_pid(node, "llmgw-agent") for node in NODES if node != "node03"}
    with lab.fleet.load():
        said = llmgw(f"ctl upgrade --to {lab.give(lab.files.newer)}")
    assert "4 of 4" in said, said
    assert lab.fleet.node("node03")["version"] == NEWER
    for node in NODES:
        assert on(node, "llmgw --version").out.split()[1] == NEWER
    assert {node: engines(node) for node in NODES} == before
    assert {node: main_pid(node, "llmgw-agent") for node in others} == others


def test_a_node_without_power_is_replaced_on_the_other_fabric(lab: Lab) -> None:
    before = set(engines("node02").values())
    machines.kill("node02")
    lab.fleet.wait_big_on(["node03", "node04"], ["node03", "node04"])
    assert lab.fleet.node("node02")["state"] == "lost"
    lab.fleet.wait_ready()
    with lab.fleet.load():
        pass
    machines.power_on("node02")
    lab.fleet.wait_state("node02", "ready")
    assert before
    assert not before & set(engines("node02").values()), "what had no power does not run"


def test_a_node_that_was_cut_off_whole_is_replaced_and_one_copy_remains_when_it_is_back(lab: Lab) -> None:
    before = lab.fleet.replica_ids()
    machines.cut("node04")
    lab.fleet.wait_big_on(["node01", "node02"], ["node01", "node02"])
    assert engines("node04"), "nobody can tell them to stop"
    machines.heal("node04")
    lab.fleet.wait_state("node04", "ready")

    def shards() -> list[str]:
        return sorted(shard for node in NODES for shard in set(engines(node).values()))

    def wanted() -> list[str]:
        return sorted(shard["shard_id"] for one in lab.fleet.ready() for shard in one["shards"])

    wait_for(lambda: shards() == wanted(), "only what is wanted runs")
    lab.fleet.wait_ready()
    assert [gpus_used_twice(node) for node in NODES] == [[], [], [], []]
    assert not before & {one["replica_id"] for one in lab.fleet.ready("demo/big")}


def test_a_removed_node_is_refused(lab: Lab) -> None:
    llmgw("ctl node remove node03 --yes", timeout_s=120)
    assert "node03" not in llmgw("ctl nodes").out
    assert lab.fleet.history("node03")
    said = wait_for(
        lambda: (
            (log := on("node03", "journalctl -u llmgw-agent -n 30 --no-pager").out) and "revoked" in log and log
        ),
        "its agent is told",
    )
    assert "revoked" in said
    lab.fleet.wait_ready()
