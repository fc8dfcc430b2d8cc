"""What stands against a VM is told in sentences, all at once, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.onboarding.proxmox.host import (
    BRIDGE_NIC,
    GPU,
    HCA,
    NVME,
    ProxmoxHost,
    qcow2,
)
from tests.onboarding.proxmox.programs import GIB

Prepare = Callable[[ProxmoxHost], object]


def nothing(_host: ProxmoxHost) -> None:
    pass


def full_storage(host: ProxmoxHost) -> None:
    host.storages({"local-lvm": {"path": "/dev/pve", "content": "images,snippets", "avail": 10 * GIB}})


def storage(**row: object) -> Prepare:
    usual = {"path": "/dev/pve", "content": "images,snippets", "avail": 500 * GIB}
    return lambda host: host.storages({"ssd": {**usual, **row}, "hdd": dict(usual)})


def without_keys(host: ProxmoxHost) -> None:
    (host.home / ".ssh/authorized_keys").unlink()


def no_iommu(host: ProxmoxHost) -> None:
    (host.root / "sys/class/iommu/dmar0/uevent").unlink()
    (host.root / "sys/class/iommu/dmar0").rmdir()


REFUSED: list[tuple[str, Prepare, list[str], str]] = [
    ("a VMID that exists", lambda h: h.guest(105, "name: db\n"), [], "--vmid 105 exists: VM 105 (db) on pve1."),
    (
        "a VMID of another host of the cluster",
        lambda h: h.guest(105, "name: db\n", node="pve2"),
        [],
        "--vmid 105 exists: VM 105 (db) on pve2.",
    ),
    (
        "a VMID of a container",
        lambda h: h.guest(105, "hostname: dns\n", kind="lxc"),
        [],
        "--vmid 105 exists: container 105 (dns) on pve1.",
    ),
    (
        "a VMID that high availability still has",
        lambda h: h.file("etc/pve/ha/resources.cfg", "vm: 1055\n\tstate started\n\nvm: 105\n\tstate started\n"),
        [],
        "--vmid 105: high availability of the cluster still has a guest of that number, and would take the new "
        "VM for it; choose another VMID, or ha-manager remove vm:105.",
    ),
    (
        "a VMID that replication still has",
        lambda h: h.file("etc/pve/replication.cfg", "local: 105-1\n\ttarget pve2\n"),
        [],
        "or pvesr delete 105-1.",
    ),
    (
        "a name of another VM",
        lambda h: h.guest(200, "name: node05\n", node="pve2"),
        [],
        "--name node05 is taken by VM 200 (node05) on pve2",
    ),
    ("a name of a host", nothing, ["--name", "pve2"], "--name pve2 is taken by the Proxmox host pve2"),
    (
        "an address of another VM, also stopped",
        lambda h: h.guest(200, "name: old\nipconfig1: gw=127.0.0.1,ip=127.0.55.5/24\n"),
        [],
        "the address belongs to VM 200 (old) on pve1",
    ),
    (
        "an address of a container",
        lambda h: h.guest(201, "hostname: dns\nnet0: name=eth0,bridge=vmbr0,ip=127.0.55.5/24\n", kind="lxc"),
        [],
        "the address belongs to container 201 (dns) on pve1",
    ),
    (
        "an address that answers to ping",
        lambda h: (h.folder / "answering").write_text("127.0.55.5"),
        [],
        "something answers to ping there already",
    ),
    (
        "a bridge that is not there",
        nothing,
        ["--bridge", "vmbr9"],
        "--bridge vmbr9: this host has no such bridge",
    ),
    (
        "a storage that is not there",
        nothing,
        ["--storage", "ceph"],
        "--storage ceph does not exist on this host; these take disks: local-lvm.",
    ),
    (
        "a storage without room",
        full_storage,
        [],
        "The storage local-lvm has 10.0 GiB left and --disk is 64.0 GiB",
    ),
    ("a storage for other things", nothing, ["--storage", "local"], "--storage local takes no disks of VMs"),
    ("a disabled storage", storage(enabled=0, active=0), ["--storage", "ssd"], "--storage ssd is disabled"),
    ("a storage that is away", storage(active=0), ["--storage", "ssd"], "--storage ssd is not active"),
    ("several storages", storage(), [], "Say which storage takes the disk with --storage; these can: hdd, ssd."),
    (
        "no storage for snippets",
        lambda h: h.storages(
            {
                "local": {"path": "/var/lib/vz", "content": "iso,vztmpl", "avail": GIB},
                "local-lvm": {"path": "/dev/pve", "content": "images", "avail": 500 * GIB},
            }
        ),
        [],
        "pvesm set local --content iso,snippets,vztmpl allows it, or --no-packages",
    ),
    (
        "disks of that number",
        lambda h: (h.folder / "volumes/local-lvm/vm-105-disk-0").write_text("1"),
        [],
        "disks of that number are left over (local-lvm:vm-105-disk-0)",
    ),
    ("more processors than the host's", nothing, ["--cores", "65"], "--cores 65: this host has 64"),
    ("more memory than is available", nothing, ["--memory", "200G"], "the host has 200.0 GiB available"),
    (
        "hugepages of one NUMA node that it has not",
        nothing,
        ["--hugepages", "1024", "--memory", "150G"],
        "NUMA node 0 must give 150.0 GiB and has 0 B in free pages and 100.0 GiB free; ask for less --memory, or "
        "--sockets 2",
    ),
    (
        "more sockets than NUMA nodes with hugepages",
        nothing,
        ["--hugepages", "1024", "--sockets", "4", "--cores", "4"],
        "--sockets 4: this host has 2 NUMA node(s)",
    ),
    ("no ssh keys", without_keys, [], "No ssh key was found"),
    (
        "a file of keys that is none",
        nothing,
        ["--ssh-key", "/dev/null"],
        "--ssh-key /dev/null holds no public key",
    ),
    (
        "a file of keys that is not there",
        nothing,
        ["--ssh-key", "/nowhere.pub"],
        "--ssh-key /nowhere.pub cannot be",
    ),
    ("a device that is not there", nothing, ["--pci", "99:00.0"], "--pci 0000:99:00.0: there is no such device"),
    ("no IOMMU", no_iommu, ["--pci", GPU], "This host's IOMMU is off"),
    (
        "a device in no group",
        lambda h: h.device(HCA, "020700", None),
        ["--pci", HCA],
        "is in no IOMMU group",
    ),
    (
        "a device of another VM, also stopped",
        lambda h: h.guest(200, "name: old\nhostpci0: 41:00,pcie=1\n"),
        ["--pci", GPU],
        "--pci 0000:41:00.0: 0000:41:00.0 belongs to VM 200 (old) on pve1 already (running or not)",
    ),
    (
        "a device that another VM gets with its next start",
        lambda h: h.guest(200, "name: old\n\n[PENDING]\nhostpci3: host=0000:41:00.0;0000:41:00.1,pcie=1\n"),
        ["--pci", GPU],
        "belongs to VM 200 (old) on pve1 already",
    ),
    (
        "a device that another VM has by a mapping",
        lambda h: (
            h.guest(200, "name: old\nhostpci0: mapping=gpus,pcie=1\n"),
            h.file(
                "etc/pve/mapping/pci.cfg",
                "gpus\n\tdescription GPUs\n\tmap id=10de:2331,node=pve2,path=0000:61:00.0\n"
                "\tmap id=10de:2331,iommugroup=15,node=pve1,path=0000:41:00.0\n",
            ),
        ),
        ["--pci", "41:00"],
        "0000:41:00.0 belongs to VM 200 (old) on pve1 already",
    ),
    (
        "a device whose group another VM has a part of",
        lambda h: (h.device("0000:42:00.0", "030200", "15"), h.guest(200, "name: old\nhostpci0: 42:00.0\n")),
        ["--pci", GPU],
        "together with 0000:42:00.0 (display, vendor 10de), which belongs to VM 200 (old) on pve1",
    ),
    (
        "a device whose group this host uses",
        lambda h: h.device("0000:42:00.0", "0c0330", "15", driver="xhci_hcd"),
        ["--pci", GPU],
        "together with 0000:42:00.0 (serial bus, vendor 10de, driver xhci_hcd), which this host uses",
    ),
    (
        "a physical function whose virtual one another VM has",
        lambda h: (
            h.device("0000:61:00.2", "020700", "33"),
            h.virtual_function(HCA, "0000:61:00.2"),
            h.guest(200, "name: old\nhostpci0: 61:00.2\n"),
        ),
        ["--pci", HCA],
        "--pci 0000:61:00.0: 0000:61:00.2, of the same adapter by SR-IOV, belongs to VM 200 (old)",
    ),
    (
        "a virtual function whose physical one another VM has",
        lambda h: (
            h.device("0000:61:00.2", "020700", "33"),
            h.virtual_function(HCA, "0000:61:00.2"),
            h.guest(200, "name: old\nhostpci0: 61:00.0\n"),
        ),
        ["--pci", "61:00.2"],
        "--pci 0000:61:00.2: 0000:61:00.0, of the same adapter by SR-IOV, belongs to VM 200 (old)",
    ),
    (
        "a gateway of IPv4 beside the network",
        nothing,
        ["--gateway", "169.254.0.1"],
        "is not in the network 127.0.0.0/8",
    ),
    ("the host's own disk", nothing, ["--pci", NVME], "carries disks of this host"),
    ("the host's own network", nothing, ["--pci", BRIDGE_NIC], "carries vmbr0 (over eno1) of this host"),
    (
        "the host's own network over a VLAN",
        lambda h: (
            h.device("0000:03:00.0", "020000", "4", driver="igb"),
            h.file("sys/bus/pci/devices/0000:03:00.0/net/eno2/upper_eno2.100/uevent", ""),
        ),
        ["--pci", "03:00.0"],
        "carries eno2.100 (over eno2) of this host",
    ),
    (
        "the host's own network by IPv6 alone",
        lambda h: (
            h.device("0000:03:00.0", "020000", "4", driver="igb"),
            h.file("sys/bus/pci/devices/0000:03:00.0/net/eno2/operstate", "up"),
            h.file(
                "proc/net/ipv6_route",
                f"{'fd00:55'.replace(':', ''):0<32} 40 {0:032} 00 {0:032} 00000100 1 0 00000001     eno2\n",
            ),
        ),
        ["--pci", "03:00.0"],
        "carries the network of eno2 of this host",
    ),
    (
        "the host's own network over a virtual function",
        lambda h: (
            h.device("0000:61:00.2", "020000", "33", driver="mlx5_core"),
            h.virtual_function(HCA, "0000:61:00.2"),
            h.file("sys/bus/pci/devices/0000:61:00.2/net/ens1v0/upper_vmbr1/uevent", ""),
        ),
        ["--pci", HCA],
        "carries vmbr1 (over ens1v0) of this host",
    ),
    (
        "the host's disks behind Fibre Channel",
        lambda h: (
            h.device("0000:04:00.0", "0c0400", "5", driver="lpfc"),
            (h.root / "sys/block").mkdir(),
            (h.root / "sys/block/sda").symlink_to(
                "../devices/pci0000:00/0000:00:01.0/0000:04:00.0/host5/target5:0:0/5:0:0:0/block/sda"
            ),
        ),
        ["--pci", "04:00.0"],
        "carries disks (sda) of this host",
    ),
    (
        "a bridge of the PCI bus",
        lambda h: (
            h.device("0000:40:00.0", "060400", "14", driver="pcieport"),
            h.file("sys/bus/pci/devices/0000:40:00.0/pci_bus/0000:41/uevent", ""),
        ),
        ["--pci", "40:00.0"],
        "is a bridge, which cannot be passed",
    ),
    ("an old Proxmox", lambda h: (h.folder / "release").write_text("7.4"), [], "This host runs Proxmox VE 7.4"),
    (
        "a disk smaller than the image's",
        nothing,
        ["--disk", "1G"],
        "--disk 1.0 GiB is smaller than the disk in the",
    ),
    (
        "an image that is not there",
        nothing,
        ["--image", "/nowhere.qcow2"],
        "--image /nowhere.qcow2: there is no such",
    ),
    (
        "an image with a name that no file can have",
        nothing,
        ["--image", f"/{'a' * 300}"],
        "there is no such file",
    ),
    (
        "an address of an image with an impossible host",
        nothing,
        ["--image", "https://a..b/y.qcow2"],
        "https://a..b/SHA512SUMS is no address",
    ),
    (
        "a storage that tells no number",
        lambda h: h.storages({"local-lvm": {"path": "/x", "content": "images", "avail": "lots"}}),
        [],
        "check pveversion -v",
    ),
    (
        "an image that nothing vouches for",
        lambda h: (h.folder / "SHA512SUMS").unlink(),
        [],
        "nothing says what it must contain: give --image-sha512",
    ),
    (
        "an image that was changed",
        lambda h: h.image.write_bytes(qcow2(GIB)),
        [],
        "and should have",
    ),
]


@pytest.mark.parametrize(
    ("prepare", "arguments", "sentence"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_it_is_refused_before_any_change(
    host: ProxmoxHost, prepare: Prepare, arguments: list[str], sentence: str
) -> None:
    prepare(host)
    before = host.state()
    assert sentence in host.refusal(*arguments)
    assert host.state() == before
    assert not host.changes()
    assert not (host.root / "var/lib/vz").exists()


@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["run", "dry-run"])
def test_a_refusal_is_a_sentence_and_an_exit_code(host: ProxmoxHost, more: list[str]) -> None:
    host.guest(105, "name: db\n")
    done = host.run(*more)
    assert done.returncode == 1
    assert done.stderr.startswith("error: --vmid 105 exists: VM 105 (db) on pve1. It is never touched")
    assert not done.stdout
    assert (host.configs / "105.conf").read_text() == "name: db\n"


def test_a_dry_run_verifies_the_image_too(host: ProxmoxHost) -> None:
    host.image.write_bytes(qcow2(GIB))
    assert "and should have" in host.refusal("--dry-run")


def test_all_that_is_wrong_is_told_at_once(host: ProxmoxHost) -> None:
    host.guest(105, "name: node05\nhostpci0: 41:00\nipconfig0: ip=127.0.55.5/8\n")
    told = host.refusal("--pci", GPU, "--bridge", "vmbr9", "--cores", "100")
    for part in (
        "--vmid 105 exists",
        "--name node05",
        "--ip 127.0.55.5/8",
        f"--pci {GPU}",
        "vmbr9",
        "--cores 100",
    ):
        assert part in told


def test_nobody_is_told_to_free_the_disks_of_a_vm_that_exists(host: ProxmoxHost) -> None:
    assert host.run().returncode == 0
    told = host.refusal()
    assert "--vmid 105 exists: VM 105 (node05) on pve1" in told
    assert "pvesm free" not in told


@pytest.mark.parametrize(
    "settings",
    [
        {"HTTPS_PROXY": "socks5://127.0.0.1:1"},
        {"HTTPS_PROXY": "ftp://127.0.0.1:1"},
        {"HTTPS_PROXY": "http://proxy:port"},
        {"NO_PROXY": "[::1"},
    ],
)
def test_a_proxy_that_cannot_be_used_is_a_sentence(host: ProxmoxHost, settings: dict[str, str]) -> None:
    told = host.refusal("--image", "https://127.0.0.1:1/y.qcow2", image=False, environment=settings)
    assert "The proxy in HTTPS_PROXY, HTTP_PROXY, ALL_PROXY or NO_PROXY cannot be used" in told


def test_without_proxmox_it_says_where_to_run(host: ProxmoxHost) -> None:
    for name in ("qm", "pvesh"):
        (host.folder / "bin" / name).unlink()
    told = host.refusal(environment={"PATH": f"{host.folder / 'bin'}:/usr/bin:/bin"})
    assert "qm and pvesh not found: run this on the Proxmox VE host itself" in told


def test_a_gateway_outside_the_hosts_network_must_be_told(host: ProxmoxHost) -> None:
    told = host.refusal(ip="192.0.2.5/24")
    assert "--gateway is needed: this host's own gateway is not in 192.0.2.0/24" in told


def test_the_other_devices_of_a_group_are_told(host: ProxmoxHost) -> None:
    done = host.run("--pci", GPU, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "0000:41:00.1 (audio, vendor 10de, driver snd_hda_intel) is in the same IOMMU group 15" in done.stdout


def test_an_interface_with_link_local_routes_alone_is_free(host: ProxmoxHost) -> None:
    host.device("0000:03:00.0", "020000", "4", driver="igb")
    host.file("sys/bus/pci/devices/0000:03:00.0/net/eno2/operstate", "up")
    own = "".join(f"{net:0<32} 40 {0:032} 00 {0:032} 00000100 1 0 00000001 eno2\n" for net in ("fe80", "ff00"))
    host.file("proc/net/ipv6_route", own)
    assert host.run("--pci", "03:00.0", "--dry-run").returncode == 0


def test_a_device_of_another_hosts_vm_is_free_here(host: ProxmoxHost) -> None:
    host.guest(200, "name: there\nhostpci0: 41:00,pcie=1\n", node="pve2")
    assert host.run("--pci", "41:00", "--dry-run").returncode == 0


def test_a_device_that_only_a_snapshot_has_is_free(host: ProxmoxHost) -> None:
    host.guest(200, "name: old\n\n[before]\nhostpci0: 41:00,pcie=1\n")
    assert host.run("--pci", "41:00", "--dry-run").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--vmid", "99"], "--vmid 99: must be a whole number from 100 to 999999999."),
        (["--name", "Node_05"], "--name 'Node_05' is no node id"),
        (["--name", "node05.lab"], "--name 'node05.lab' has a dot: Proxmox would call the machine 'node05'"),
        (["--name", "-x"], "--name '-x' is no node id"),
        (["--name", "105"], "--name '105' is only digits"),
        (["--ip", "10.0.0.5"], "--ip '10.0.0.5' has no network"),
        (["--ip", "10.0.0.0/24"], "is the network itself"),
        (["--ip", "10.0.0.255/24"], "is its broadcast address"),
        (["--ip", "fe80::1/64"], "is no address that a machine can be reached at"),
        (["--ip", "ten/24"], "is no address with its prefix"),
        (["--gateway", "10.9.9.9"], "--gateway '10.9.9.9' is not in the network 127.0.0.0/8 of --ip."),
        (["--gateway", "127.0.0.0"], "is the address of the network 127.0.0.0/8 itself"),
        (["--gateway", "127.255.255.255"], "is the address of the network 127.0.0.0/8 itself"),
        (["--gateway", "127.0.55.5"], "is the machine's own address"),
        (["--gateway", "fd00::1"], "is IPv6 and --ip is IPv4"),
        (["--bridge", "a/b"], "--bridge 'a/b' cannot be meant"),
        (["--storage", "../x"], "--storage '../x' cannot be meant"),
        (["--cores", "0"], "--cores 0: must be a whole number from 1"),
        (["--memory", "64"], "--memory '64' is no size; write for example 64G"),
        (["--memory", "64k"], "--memory '64k' is no size"),
        (["--memory", "\u0663G"], "--memory '\u0663G' is no size"),
        (["--disk", "100M"], "--disk '100M' is less than a node boots with"),
        (["--image", "ftp://x/y.qcow2"], "only https:// (and http:// with a checksum) can be fetched"),
        (["--image", "https://user:secret@x/y.qcow2"], "--image has a password in its address"),
        (["--image", "https://[x/y.qcow2"], "--image 'https://[x/y.qcow2' is no address"),
        (["--image", "https:///y.qcow2"], "--image 'https:///y.qcow2' is no address"),
        (["--image", "https://x:99999/y.qcow2"], "is no address; write for example https://cloud.debian.org"),
        (["--image", "https://x/#y.qcow2"], "names a folder; give the address of the image in it"),
        (["--image", "https://x/y\x07.qcow2"], "must be the path of a file or an https:// address"),
        (["--image", "http://x/y.qcow2"], "--image over plain http:// could be anybody's"),
        (["--image-sha256", "abc"], "--image-sha256 must be 64 hex digits; this has 3 characters."),
        (["--image-sha256", "0" * 64, "--image-sha512", "0" * 128], "give one of them"),
        (["--ssh-user", "a b"], "--ssh-user 'a b' cannot be meant"),
        (["--ssh-port", "70000"], "--ssh-port 70000: must be a whole number from 1 to 65535."),
        (["--pci", "gpu0"], "--pci 'gpu0' is no PCI address; write it as lspci does"),
        (["--pci", "41:00", "--pci", "0000:41:00.1"], "0000:41:00 is named twice"),
        (["--hugepages", "4"], "--hugepages '4': must be 1024 or 2"),
        (["--hugepages", "1024", "--memory", "16500M"], "--memory must be a multiple of 1024 MiB"),
        (["--cores", "5", "--sockets", "2"], "--cores 5 cannot be split over --sockets 2."),
        (["--server", "gateway"], "--server 'gateway' cannot be meant; give a URL"),
    ],
)
def test_bad_options_get_a_sentence_and_nobody_is_asked(
    host: ProxmoxHost, arguments: list[str], sentence: str
) -> None:
    told = host.refusal(*arguments)
    assert sentence in told
    assert "secret" not in told
    assert not host.calls()


def test_root_is_needed_on_a_real_host(host: ProxmoxHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "Proxmox's programs need root" in host.refusal(environment={"LLMGW_PROVISION_ROOT": "/"})
    assert not host.calls()
