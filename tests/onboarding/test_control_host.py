"""A machine is made a control host: once, again, after failures, and without touching what its operator wrote."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
from pathlib import Path

import pytest
import yaml

from llmgw.cli.server_install import next_steps
from llmgw.config.errors import ConfigError
from llmgw.config.server import AgentsTls, KeyRule, ServerConfig
from llmgw.onboarding.control_host import Installed, wait_until_it_answers
from llmgw.onboarding.control_units import escaped, stream_address
from llmgw.onboarding.local_host import ControlHostError
from llmgw.pki.authority import Authority
from llmgw.pki.certificates import alternative_names
from llmgw.pki.errors import PkiError
from llmgw.pki.files import load_certificates
from llmgw.pki.handout import write_files
from llmgw.pki.tls import agents_server_context
from llmgw.server.router_process import router_settings
from tests.onboarding.control_machine import NOW, SERVER, SOCKET, Machine

YEAR_S = 365 * 86400.0


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "root")


def certificate_hosts(machine: Machine) -> list[str]:
    return alternative_names(load_certificates(machine.root / "etc/llmgw/server.pem", "certificate", "")[0])


def test_a_bare_machine_becomes_a_control_host(machine: Machine) -> None:
    done = machine.install(routers=2)
    assert machine.users == {"llmgw"}
    assert list(machine.active) == [SOCKET, SERVER, "llmgw-router@0.service", "llmgw-router@1.service"]
    assert machine.enabled == set(machine.active)
    assert done.hosts == ["gw1.lan", "gw1", "10.0.0.1"]
    assert (done.listen, done.agents_port, done.routers, done.notes) == ("127.0.0.1:8080", 8443, 2, [])
    etc = machine.root / "etc/llmgw"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in etc.iterdir()}
    assert modes == {
        "ca.pem": 0o644,
        "pki": 0o710,
        "renewal.pem": 0o644,
        "renewal-key.pem": 0o600,
        "server.pem": 0o644,
        "server-key.pem": 0o600,
        "server.yaml": 0o640,
    }
    # The root's key stays with the authority.
    root_key = (etc / "pki/ca-key.pem").read_text()
    assert all(root_key not in path.read_text() for path in etc.iterdir() if path.is_file())


def test_the_configuration_is_good_and_what_it_names_is_what_a_server_can_use(machine: Machine) -> None:
    machine.install(listen="0.0.0.0:8080")
    config = machine.config()
    assert (config.listen, config.router.workers, config.key_rule) == ("0.0.0.0:8080", 0, KeyRule.ALWAYS)
    assert config.agents.tls is not None
    there = {key: value and value.replace("/etc/", f"{machine.root}/etc/") for key, value in config.agents.tls}
    agents_server_context(AgentsTls(**there), NOW + 60)
    assert all(Path(value).exists() for value in there.values())


def test_a_second_run_changes_nothing_and_restarts_nothing(machine: Machine) -> None:
    machine.install()
    before, pids = machine.tree(), dict(machine.active)
    assert machine.install().changed == []
    assert (machine.tree(), machine.active) == (before, pids)


def test_a_dry_run_names_each_action_and_does_none(machine: Machine) -> None:
    before = machine.tree()
    said = machine.install(dry_run=True).changed
    assert machine.tree() == before
    assert (machine.users, machine.active, machine.enabled) == (set(), {}, set())
    really = machine.install().changed
    for words in (
        "make the user llmgw",
        "make an authority in /etc/llmgw/pki",
        "/etc/llmgw/server.yaml",
        "/etc/systemd/system/llmgw-server.service",
        f"start {SERVER}",
    ):
        assert any(words in what for what in said), words
        assert any(words in what for what in really), words
    assert machine.install(dry_run=True).changed == []


def test_a_dry_run_names_the_hosts_that_the_certificate_will_be_for(machine: Machine) -> None:
    own: dict[str, object] = {"own_hosts": ("gw1", "10.0.0.1", "203.0.113.7"), "own_name": "localhost"}
    said, really = machine.install(dry_run=True, **own), machine.install(**own)
    assert said.hosts == really.hosts == ["10.0.0.1"]
    assert said.notes == really.notes
    [issue] = [what for what in said.changed if "certificate" in what and "issue" in what]
    assert issue.endswith("for 10.0.0.1")


@pytest.mark.parametrize(
    "broken",
    ["useradd", "systemctl enable", f"start -- {SOCKET}", f"start -- {SERVER}", "start -- llmgw-router@0"],
)
def test_a_run_that_failed_is_completed_by_the_next(machine: Machine, broken: str) -> None:
    machine.fails = {broken: "no room"}
    machine.journal = "Starting\nerror: the disk is full\n"
    with pytest.raises(ControlHostError, match=r"no room|the disk is full"):
        machine.install(routers=1)
    machine.fails = {}
    again = machine.install(routers=1)
    assert again.changed
    assert list(machine.active) == [SOCKET, SERVER, "llmgw-router@0.service"]
    assert machine.install().changed == []


def test_a_unit_that_does_not_start_is_explained_by_its_own_log(machine: Machine) -> None:
    machine.fails = {f"start -- {SERVER}": "Job failed"}
    machine.journal = '{"message": "admin API"}\nerror: port 8443 on 0.0.0.0 is busy\nMain process exited\n'
    with pytest.raises(
        ControlHostError, match=r"llmgw-server.service did not start: error: port 8443 on .* busy"
    ):
        machine.install()


def test_an_operators_server_yaml_is_never_written_and_its_settings_reach_the_routers(machine: Machine) -> None:
    machine.install(routers=1)
    machine.edit(
        lambda text: text.replace("  #drain_grace: 1m", "  drain_grace: 3m") + "tls: {cert: /c 1, key: /k%}\n"
    )
    mine = machine.text("/etc/llmgw/server.yaml")
    done = machine.install()
    assert machine.text("/etc/llmgw/server.yaml") == mine
    settings = machine.text("/etc/systemd/system/llmgw-router@.service.d/settings.conf")
    (line,) = re.findall(r"^ExecStart=(/.*)$", settings, re.MULTILINE)
    argv = [word.replace("%%", "%") for word in shlex.split(line)]
    assert "--drain-s=180.0" in argv
    assert "--tls-cert=/c 1" in argv
    assert "--tls-key=/k%" in argv
    assert f"--settings={router_settings(machine.config())}" in argv
    assert "TimeoutStopSec=195\n" in settings
    assert [what.partition(",")[0] for what in done.changed][-3:] == [
        "have systemd read its units again",
        f"restart {SERVER}",
        "restart llmgw-router@0.service",
    ]
    assert machine.install().changed == []


def test_another_address_closes_the_old_socket_before_its_unit_is_read_again(machine: Machine) -> None:
    machine.install(routers=1)
    machine.edit(lambda text: text.replace("listen: 127.0.0.1:8080", "listen: 0.0.0.0:9090"))
    machine.ran.clear()
    machine.install()
    changes = [one for one in machine.ran if one.startswith("systemctl") and "show" not in one]
    stop, reload, start = changes[0], changes[1], changes[2]
    assert stop == f"systemctl stop -- {SOCKET} llmgw-router@0.service"
    assert reload == "systemctl daemon-reload"
    assert start == f"systemctl start -- {SOCKET}"
    assert "ListenStream=\nListenStream=0.0.0.0:9090\n" in machine.text(
        "/etc/systemd/system/llmgw-router.socket.d/listen.conf"
    )
    assert machine.install().changed == []


def test_what_was_started_from_something_older_is_restarted_and_nothing_else(machine: Machine) -> None:
    machine.install(routers=2)
    late = max(machine.active.values()) + 100
    os.utime(machine.root / "etc/llmgw/server.yaml", (late, late))
    assert machine.install().changed == [f"restart {SERVER}"]


def test_another_program_restarts_everything_one_router_after_the_other(machine: Machine) -> None:
    machine.install(routers=2)
    late = max(machine.active.values()) + 100
    os.utime(machine.root / "usr/local/bin/llmgw", (late, late))
    assert [what.split(",")[0] for what in machine.install().changed] == [
        f"restart {SERVER}",
        "restart llmgw-router@0.service",
        "restart llmgw-router@1.service",
    ]


def test_the_number_of_routers_is_kept_and_surplus_ones_are_ended(machine: Machine) -> None:
    machine.install(routers=3)
    assert machine.install().routers == 3
    machine.install(routers=1)
    assert "llmgw-router@0.service" in machine.active
    assert not {"llmgw-router@1.service", "llmgw-router@2.service"} & (set(machine.active) | machine.enabled)
    assert machine.install().changed == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("workers: 0", "workers: 2"), "says 2 for router.workers"),
        (("  workers: 0\n", "  body_bytes_max: 2048\n"), "says nothing for router.workers"),
        (("state: /var/lib/llmgw", "state: /srv/llmgw"), "the units may write to /var/lib/llmgw alone"),
        (("listen: 127.0.0.1:8080", "listen: gw1.lan:8080"), "nothing that a socket unit can listen on"),
    ],
)
def test_a_server_yaml_that_the_units_cannot_do_is_refused_before_anything_is_changed(
    machine: Machine, change: tuple[str, str], said: str
) -> None:
    machine.install()
    machine.edit(lambda text: text.replace(*change))
    before = machine.tree()
    with pytest.raises(ControlHostError, match=said):
        machine.install()
    assert machine.tree() == before


def test_listen_does_not_contradict_a_file_that_is_there(machine: Machine) -> None:
    machine.install()
    assert machine.install(listen="127.0.0.1:8080").changed == []
    with pytest.raises(ControlHostError, match=r"says listen: 127.0.0.1:8080; write 0.0.0.0:80 there"):
        machine.install(listen="0.0.0.0:80")


def test_a_server_yaml_that_is_wrong_is_told_with_its_line(machine: Machine) -> None:
    machine.install()
    machine.edit(lambda text: text.replace("workers: 0", "wrkers: 0"))
    with pytest.raises(ConfigError, match=r"server.yaml line \d+: router.wrkers: unknown key"):
        machine.install()


@pytest.mark.parametrize(
    ("listen", "said"), [("8080", "--listen"), ("gw.lan:80", "socket unit"), ("1.2.3.4:0", "socket")]
)
def test_an_address_that_cannot_be_listened_on_is_refused_first(machine: Machine, listen: str, said: str) -> None:
    with pytest.raises(ControlHostError, match=said):
        machine.install(listen=listen)
    assert not machine.users


def test_a_port_that_is_taken_names_who_has_it(machine: Machine) -> None:
    machine.busy[8443] = "nginx (pid 7) listens there"
    with pytest.raises(ControlHostError, match=r"Port 8443 .*agents.listen: 0.0.0.0:8443\): nginx \(pid 7\)"):
        machine.install()
    machine.busy.clear()
    machine.install()
    machine.busy[8443] = "llmgw (pid 101) listens there"  # it is the server's own now
    assert machine.install().changed == []


def test_a_port_that_is_taken_is_told_before_what_runs_is_moved_there(machine: Machine) -> None:
    machine.install()
    machine.edit(lambda text: text.replace("8443", "9443"))
    machine.busy[9443] = "nginx (pid 7) listens there"
    before = (machine.tree(), dict(machine.active))
    with pytest.raises(ControlHostError, match=r"Port 9443 .*nginx \(pid 7\)"):
        machine.install()
    assert (machine.tree(), machine.active) == before


@pytest.mark.parametrize("listen", ["[::]:8080", "[fd00::1]:80", "0.0.0.0:80", "localhost:8080"])
def test_every_form_of_an_address_gets_into_server_yaml(machine: Machine, listen: str) -> None:
    assert machine.install(listen=listen).listen == listen
    assert machine.config().listen == listen
    assert machine.install(listen=listen).changed == []


@pytest.mark.parametrize("listen", ["", "999.1.1.1:80", "127.0.0.1:8081", "0.0.0.0:8443", "[::]:8081"])
def test_an_address_that_nothing_could_listen_on_leaves_no_server_yaml(machine: Machine, listen: str) -> None:
    with pytest.raises(ControlHostError, match="listen"):
        machine.install(listen=listen)
    assert not machine.users
    assert not (machine.root / "etc/llmgw").exists()


def test_another_machines_address_is_refused_before_anything_is_changed(machine: Machine) -> None:
    machine.elsewhere = {"10.9.9.9"}
    with pytest.raises(ControlHostError, match=r"10.9.9.9 is no address of this machine .* --listen"):
        machine.install(listen="10.9.9.9:8080")
    assert not (machine.root / "etc").exists()
    machine.install()
    machine.edit(lambda text: text.replace("0.0.0.0:8443", "10.9.9.9:8443"))
    with pytest.raises(ControlHostError, match=r"\(agents.listen: 10.9.9.9:8443\).* in server.yaml"):
        machine.install()


def test_an_address_that_comes_after_the_socket_at_boot_is_listened_on(machine: Machine) -> None:
    machine.install()
    assert "FreeBind=true" in machine.text(f"/etc/systemd/system/{SOCKET}").splitlines()


def test_a_user_that_has_no_group_of_its_name_gets_one(machine: Machine) -> None:
    machine.passwd = "llmgw:x:998:100::/srv/odd home:/bin/sh\n"
    done = machine.install()
    assert "make the group llmgw" in done.changed
    assert not any(command.startswith("useradd") for command in machine.ran)


def test_a_user_who_is_root_is_refused(machine: Machine) -> None:
    machine.passwd, machine.users = "llmgw:x:0:998::/root:/bin/sh\n", {"llmgw"}
    with pytest.raises(ControlHostError, match="would run as root"):
        machine.install()
    assert not (machine.root / "etc").exists()


def test_a_state_folder_that_is_a_symlink_is_refused_with_a_remedy(machine: Machine) -> None:
    (machine.root / "var/lib").mkdir(parents=True)
    (machine.root / "var/lib/llmgw").symlink_to("/srv/state")
    with pytest.raises(ControlHostError, match="mount --bind /srv/state /var/lib/llmgw"):
        machine.install()
    assert not machine.users


def test_a_machine_that_is_mounted_read_only_is_told_so_first(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs

    def read_only(path: Path) -> os.statvfs_result:
        found = list(real(path))
        if Path(path) == machine.root / "usr/local/bin/llmgw":
            found[8] |= os.ST_RDONLY  # f_flag, statvfs(3)
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", read_only)
    with pytest.raises(ControlHostError, match=r"/usr/local/bin/llmgw .* mounted read-only"):
        machine.install()
    assert machine.ran == []


def test_a_machine_without_systemd_is_told_what_else_there_is(machine: Machine) -> None:
    (machine.root / "run/systemd/system").rmdir()
    with pytest.raises(ControlHostError, match="not run by systemd"):
        machine.install()


# Certificates.


def test_a_new_host_and_an_end_that_comes_near_mean_a_new_certificate(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install()
    first = machine.text("/etc/llmgw/server.pem")
    assert machine.install(hosts=("gw1", "10.0.0.1")).changed == []
    done = machine.install(hosts=("vip.lan",))
    assert [what for what in done.changed if "issue" in what]
    assert certificate_hosts(machine) == ["vip.lan", "gw1.lan", "gw1", "10.0.0.1"]
    # Named once, kept from then on; no restart: the server reads it again by itself.
    assert machine.install().changed == []
    assert not [what for what in done.changed if "restart" in what]
    assert machine.text("/etc/llmgw/server.pem") != first
    monkeypatch.setattr("tests.onboarding.control_machine.NOW", NOW + 2.2 * YEAR_S)
    assert [what for what in machine.install().changed if "more days" in what]
    assert certificate_hosts(machine) == ["gw1.lan", "gw1", "10.0.0.1", "vip.lan"]


def test_a_key_that_the_server_could_not_use_is_replaced(machine: Machine) -> None:
    machine.install()
    (machine.root / "etc/llmgw/server-key.pem").chmod(0o644)
    assert [what for what in machine.install().changed if "could not read its key" in what]
    other = machine.text("/etc/llmgw/renewal-key.pem")
    (machine.root / "etc/llmgw/server-key.pem").write_text(other)
    assert [what for what in machine.install().changed if "another's" in what]
    assert machine.install().changed == []


def test_own_addresses_outside_of_the_authority_are_left_out_and_named_ones_refused(machine: Machine) -> None:
    done = machine.install(own_hosts=("gw1", "203.0.113.7", "not_a_name"))
    assert done.hosts == ["gw1"]
    assert any("203.0.113.7" in note for note in done.notes)
    with pytest.raises(PkiError, match="outside of what this authority may sign for"):
        machine.install(hosts=("203.0.113.7",))
    assert certificate_hosts(machine) == ["gw1"]
    with pytest.raises(PkiError, match="is a URL"):
        machine.install(hosts=("https://gw1",))


def test_a_host_that_a_new_authority_could_not_sign_for_is_refused_before_it_is_made(machine: Machine) -> None:
    with pytest.raises(ControlHostError, match=r"init-ca --pki /etc/llmgw/pki .*--permit-ip 203.0.113.7"):
        machine.install(hosts=("203.0.113.7",))
    with pytest.raises(ControlHostError, match=r"--permit-dns gw.example.com"):
        machine.install(hosts=("gw.example.com",))
    assert not (machine.root / "etc/llmgw").exists()
    machine.install(hosts=("gw9.lan",))
    assert certificate_hosts(machine)[0] == "gw9.lan"


def test_a_renewed_intermediate_reaches_the_server(machine: Machine) -> None:
    machine.install()
    Authority.open(machine.root / "etc/llmgw/pki").renew("renewal", NOW)
    assert machine.install().changed == [
        "install /etc/llmgw/renewal.pem and /etc/llmgw/renewal-key.pem (the key llmgw:llmgw 0600)"
    ]
    assert machine.text("/etc/llmgw/renewal.pem") == machine.text("/etc/llmgw/pki/renewal.pem")


def test_credentials_of_an_authority_elsewhere_are_installed_and_no_authority_is_made(
    machine: Machine, tmp_path: Path
) -> None:
    authority = Authority.create(tmp_path / "pki", now=NOW)
    brought = tmp_path / "brought"
    write_files(authority.issue_server(["gw1.lan"], NOW), brought)
    machine.install(credentials=brought)
    assert not (machine.root / "etc/llmgw/pki").exists()
    assert certificate_hosts(machine) == ["gw1.lan"]
    tls = machine.config().agents.tls
    assert tls is not None
    assert (tls.renewal_cert, tls.revocations) == (None, None)
    assert machine.install(credentials=brought).changed == []
    with pytest.raises(ControlHostError, match="leave one out"):
        machine.install(credentials=brought, hosts=("gw1",))
    with pytest.raises(PkiError, match="no authority's root certificate"):
        machine.install(credentials=tmp_path)


def test_what_another_hosts_authority_issued_stays_when_it_is_not_named_again(
    machine: Machine, tmp_path: Path
) -> None:
    authority = Authority.create(tmp_path / "pki", now=NOW)
    brought = tmp_path / "brought"
    write_files(authority.issue_server(["gw1.lan"], NOW), brought)
    for name in ("renewal.pem", "renewal-key.pem", "revoked.pem"):
        shutil.copy(tmp_path / "pki" / name, brought / name)
    machine.install(credentials=brought)
    before = machine.tree()
    for again in (machine.install(), machine.install(hosts=("gw1.lan",))):
        assert again.changed == []
        assert not again.authority_is_here
    assert machine.tree() == before
    with pytest.raises(ControlHostError, match=r"is not for gw2.lan.*--credentials"):
        machine.install(hosts=("gw2.lan",))
    # A server.yaml that is made again says the same.
    (machine.root / "etc/llmgw/server.yaml").unlink()
    machine.install()
    tls = machine.config().agents.tls
    assert tls is not None
    assert (tls.renewal_cert, tls.revocations) == ("/etc/llmgw/renewal.pem", "/etc/llmgw/revoked.pem")
    # A key that another user was given is made the server's.
    (machine.root / "etc/llmgw/server-key.pem").chmod(0o640)
    assert len(machine.install().changed) == 1
    assert stat.S_IMODE((machine.root / "etc/llmgw/server-key.pem").stat().st_mode) == 0o600


def test_a_node_of_another_control_host_does_not_lose_the_root_that_it_trusts(machine: Machine) -> None:
    (machine.root / "etc/llmgw").mkdir(parents=True)
    root = machine.root / "etc/llmgw/ca.pem"
    root.write_text("the root that the agent of this machine trusts\n")
    before = machine.tree()
    with pytest.raises(PkiError, match=r"server.pem.* move /etc/llmgw/ca.pem away"):
        machine.install()
    assert machine.tree() == before
    assert not machine.users


def test_an_authority_that_was_taken_off_this_host_is_not_made_again(machine: Machine, tmp_path: Path) -> None:
    machine.install()
    shutil.move(machine.root / "etc/llmgw/pki", tmp_path / "safe")
    before = machine.tree()
    assert machine.install().changed == []
    assert machine.tree() == before


def test_the_root_that_nodes_trust_is_not_replaced_by_another(machine: Machine, tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "pki", now=NOW)
    brought = tmp_path / "brought"
    write_files(authority.issue_server(["gw1.lan"], NOW), brought)
    machine.install()
    before = machine.tree()
    with pytest.raises(ControlHostError, match="root of another authority"):
        machine.install(credentials=brought)
    assert machine.tree() == before


def test_nodes_are_brought_in_from_where_the_authority_is() -> None:
    here, elsewhere = (
        next_steps(Installed(listen="", routers=1, agents_port=8443, hosts=["gw1"], authority_is_here=is_here))[1]
        for is_here in (True, False)
    )
    assert here[1].endswith("--server https://gw1:8443 --pki /etc/llmgw/pki")
    assert "authority's host" in elsewhere[0]
    assert "/etc/llmgw/pki" not in elsewhere[1]


# Small parts.


def test_an_argument_means_the_same_to_systemd() -> None:
    assert escaped("--drain-s=60") == "--drain-s=60"
    assert escaped("/50%/$x") == "/50%%/$$x"
    assert escaped('a "b" \\') == '"a \\"b\\" \\\\"'


def test_addresses_are_written_as_a_socket_unit_takes_them() -> None:
    assert stream_address("localhost:8080") == "127.0.0.1:8080"
    assert stream_address("[::]:80") == "[::]:80"


def test_a_server_that_does_not_come_to_answer_is_told_with_what_ctl_saw_and_its_log(machine: Machine) -> None:
    machine.journal = "error: the store is locked\n"
    times = iter(range(100))
    answers = iter(["It hears from 0 of 1 routers.", None])
    arguments = {"clock": lambda: float(next(times)), "sleep": lambda seconds: None}
    wait_until_it_answers(machine.host, lambda: next(answers), limit_s=5, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ControlHostError, match=r"It hears from 0 of 1 routers\. Its log says: error: the store"):
        wait_until_it_answers(
            machine.host,
            lambda: "It hears from 0 of 1 routers.",
            limit_s=5,
            **arguments,  # type: ignore[arg-type]
        )


def test_a_new_server_yaml_has_the_keys_of_the_reference(machine: Machine) -> None:
    machine.install()
    keys = yaml.safe_load(machine.text("/etc/llmgw/server.yaml"))
    assert set(keys) <= set(ServerConfig.model_fields)
