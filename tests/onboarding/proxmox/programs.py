"""What runs as `qm`, `pvesh`, `pvesm` and `ping`: by the name that it was called, on the state beside its folder.

State: `../root` (the host's files; its VMs are root/etc/pve/nodes/*/qemu-server/*.conf, as on a real host),
`../storages.json`, `../volumes/STORAGE/VOLUME` (size in bytes), `../running/VMID`, `../answering` (addresses that
answer to ping), `../faults.json` ({"create": FAULT, …}, see `qm`), `../calls` (all of them), `../copying` (there
while something holds disks open).
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

from tests.onboarding.proxmox import options as table

STATE = Path(sys.argv[0]).absolute().parent.parent
ROOT = STATE / "root"
NODE = "pve1"
CONFIGS = ROOT / "etc/pve/nodes" / NODE / "qemu-server"
GIB = 2**30
LISTENER = """
import socket, sys, time
from pathlib import Path
address, port, alive = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
listener = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
listener.settimeout(0.1)
until = time.monotonic() + 60
while alive.exists() and time.monotonic() < until:
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        continue
    connection.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian\\r\\n")
    connection.close()
"""


class Failure(Exception):
    """What the program prints on stderr before it exits with 255."""


def main() -> None:
    name = Path(sys.argv[0]).name
    with (STATE / "calls").open("a") as calls:
        calls.write(json.dumps([name, *sys.argv[1:]]) + "\n")
    try:
        {"qm": qm, "pvesh": pvesh, "pvesm": pvesm, "ping": ping}[name](sys.argv[1:])
    except (Failure, table.WrongUsage) as error:
        print(error, file=sys.stderr)
        raise SystemExit(255) from None


COPIER = """
import signal, sys, time
from pathlib import Path
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
copying = Path(sys.argv[1])
copying.touch()
until = time.monotonic() + 50
while not ended and time.monotonic() < until:
    time.sleep(0.02)
time.sleep(3)
copying.unlink()
"""


def qm(arguments: list[str]) -> None:
    """Faults: `before` and `after` it did its work, `once` (before), `hang`, `slow` (until `../go` is there).

    `untold`: it fails, and its exit code is 0, as with tasks whose end nobody asks for. `killed`: only what
    stands at the beginning is done. `copying`: as `hang`, with a child that ends slowly.
    """
    command, plain, options = table.read(arguments)
    faults = json.loads((STATE / "faults.json").read_text())
    fault = faults.get(command)
    if fault == "before":
        raise Failure(f"{command} failed: got timeout")
    if fault == "untold":
        print(f"{command} failed: lvextend error: Insufficient free space", file=sys.stderr)
        return
    if fault == "once":
        (STATE / "faults.json").write_text(json.dumps({**faults, command: None}))
        raise Failure(f"can't lock file '/var/lock/qemu-server/lock-{plain[0]}.conf' - got timeout")
    if fault == "killed":
        # PVE/AbstractConfig.pm, create_and_lock_config: this comes before the disks and all settings.
        _write(plain[0], {"lock": "create"})
        raise SystemExit(137)
    taken = CONFIGS / f"{plain[0]}.conf"
    if fault == "taken":  # somebody is faster, between our caller's checks and this
        taken.write_text("name: somebody\n")
    {
        "create": create,
        "set": change,
        "resize": resize,
        "start": start,
        "stop": stop,
        "destroy": destroy,
        "config": config,
        "status": status,
    }[command](plain, options)
    if fault == "copying":
        subprocess.Popen([sys.executable, "-S", "-c", COPIER, str(STATE / "copying")], stdout=subprocess.DEVNULL)
        while not (STATE / "copying").exists():
            time.sleep(0.02)
    if fault in ("hang", "slow", "copying"):
        (STATE / "hanging").write_text(command)
        # `slow` comes to its end when it is let; both end after a while, so that a lost test leaves nothing.
        until = time.monotonic() + 50
        while time.monotonic() < until and not (fault == "slow" and (STATE / "go").exists()):
            time.sleep(0.02)
    if fault == "after":
        raise Failure(f"{command} failed: lvcreate 'pve/vm-{plain[0]}-disk-0' error: out of data space")


def create(plain: list[str], options: dict[str, str]) -> None:
    vmid = plain[0]
    for path in (ROOT / "etc/pve/nodes").glob(f"*/*/{vmid}.conf"):
        raise Failure(
            f"unable to create VM {vmid} - VM {vmid} already exists on node '{path.parent.parent.name}'"
        )
    settings = dict(options)
    if settings.get("hugepages") and settings.get("numa") != "1":
        raise Failure("numa needs to be enabled to use hugepages")
    for key, value in settings.items():
        if key.startswith("hostpci") and "pcie=1" in value and not settings.get("machine", "").startswith("q35"):
            raise Failure("q35 machine model is not enabled")
    _take_keys(settings)
    _allocate(vmid, settings)
    settings.setdefault("vmgenid", "a6c9a0d6-9ae4-4bb3-8d4b-6ac1d6a50b2a")
    _write(vmid, settings)


def change(plain: list[str], options: dict[str, str]) -> None:
    vmid, settings = plain[0], _read(plain[0])
    new = dict(options)
    _take_keys(new)
    _allocate(vmid, new)
    _write(vmid, settings | new)


def resize(plain: list[str], options: dict[str, str]) -> None:
    vmid, disk, size = plain
    settings = _read(vmid)
    found = re.fullmatch(r"(\d+)([KMGT]?)", size)
    if disk not in settings or found is None:
        raise Failure(f"disk '{disk}' does not exist")
    wanted = int(found[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}[found[2]]
    volume = _volume(settings[disk].split(",")[0])
    if wanted < int(volume.read_text()):
        raise Failure("shrinking disks is not supported")
    volume.write_text(str(wanted))
    _write(vmid, settings | {disk: re.sub(r"size=[^,]+", f"size={size}", settings[disk])})


def start(plain: list[str], options: dict[str, str]) -> None:
    vmid, settings = plain[0], _read(plain[0])
    running = STATE / "running" / vmid
    if running.exists():
        raise Failure(f"VM {vmid} already running")
    bridge = re.search(r"bridge=([^,]+)", settings.get("net0", ""))
    if bridge and not (ROOT / "sys/class/net" / bridge[1]).exists():
        raise Failure(f"bridge '{bridge[1]}' does not exist")
    snippet = re.search(r"vendor=([^,]+)", settings.get("cicustom", ""))
    if snippet and not Path(_path(snippet[1])).is_file():
        raise Failure(f"can't open '{_path(snippet[1])}' - No such file or directory")
    running.write_text("running")
    address = re.search(r"ip6?=([^,/]+)", settings.get("ipconfig0", ""))
    port = (STATE / "ssh_port").read_text()
    if address and port != "0":
        subprocess.Popen(
            [sys.executable, "-c", LISTENER, address[1], port, str(running)],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def stop(plain: list[str], options: dict[str, str]) -> None:
    _read(plain[0])
    (STATE / "running" / plain[0]).unlink(missing_ok=True)


def destroy(plain: list[str], options: dict[str, str]) -> None:
    vmid, settings = plain[0], _read(plain[0])
    if (STATE / "running" / vmid).exists():
        raise Failure(f"VM {vmid} is running - destroy failed")
    _nothing_copies(vmid)
    for value in settings.values():
        volume = value.split(",")[0]
        if re.fullmatch(rf"[\w-]+:vm-{vmid}-[\w-]+", volume):
            _volume(volume).unlink()
    if options.get("destroy-unreferenced-disks") == "1":
        for left in (STATE / "volumes").glob(f"*/vm-{vmid}-*"):
            left.unlink()
    jobs = ROOT / "etc/pve/jobs.cfg"
    if options.get("purge") == "1" and jobs.exists():
        jobs.write_text(re.sub(rf"\b{vmid}\b,?", "", jobs.read_text()))
    (CONFIGS / f"{vmid}.conf").unlink()


def config(plain: list[str], options: dict[str, str]) -> None:
    for key, value in sorted(_read(plain[0]).items()):
        # PVE/CLI/qm.pm prints descriptions encoded.
        print(f"{key}: {quote(value, safe=' ()-') if key == 'description' else value}")


def status(plain: list[str], options: dict[str, str]) -> None:
    _read(plain[0])
    print(f"status: {'running' if (STATE / 'running' / plain[0]).exists() else 'stopped'}")


def pvesh(arguments: list[str]) -> None:
    if arguments[-2:] != ["--output-format", "json"] or arguments[0] != "get":
        raise Failure("400 the tests' pvesh answers in JSON only")
    path, more = arguments[1], arguments[2:-2]
    storages = json.loads((STATE / "storages.json").read_text())
    answers = {
        ("/version",): {"release": (STATE / "release").read_text(), "version": "8.4.1", "repoid": "2a5fa54a"},
        ("/cluster/resources", "--type", "vm"): _resources(),
        (f"/nodes/{NODE}/storage",): [{"storage": name, **row} for name, row in storages.items()],
        (f"/nodes/{NODE}/network", "--type", "any_bridge"): json.loads((STATE / "bridges.json").read_text()),
    }
    if (path, *more) not in answers:
        raise Failure(f"No '{path}' resource handler")
    print(json.dumps(answers[path, *more]))


def pvesm(arguments: list[str]) -> None:
    if arguments[0] == "path" and len(arguments) == 2:
        print(_path(arguments[1]))
    elif arguments[0] == "list" and arguments[2:4] == ["--content", "images"] and arguments[4] == "--vmid":
        print("Volid            Format  Type              Size VMID")
        for path in sorted((STATE / "volumes" / arguments[1]).glob(f"vm-{arguments[5]}-*")):
            print(f"{arguments[1]}:{path.name} raw images {path.read_text()} {arguments[5]}")
    elif arguments[0] == "free" and len(arguments) == 2:
        _nothing_copies(arguments[1])
        _volume(arguments[1]).unlink()
    else:
        raise Failure(f"ERROR: unknown command 'pvesm {' '.join(arguments)}'")


def ping(arguments: list[str]) -> None:
    raise SystemExit(0 if arguments[-1] in (STATE / "answering").read_text().split() else 1)


def _resources() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for path in sorted((ROOT / "etc/pve/nodes").glob("*/*/*.conf")):
        kind = "qemu" if path.parent.name == "qemu-server" else "lxc"
        name = re.search(r"^(?:name|hostname): (.*)$", path.read_text(), re.MULTILINE)
        node = path.parent.parent.name
        rows.append({"vmid": int(path.stem), "name": name[1] if name else "", "node": node, "type": kind})
    return rows


def _path(volume: str) -> str:
    storage, _, rest = volume.partition(":")
    row = json.loads((STATE / "storages.json").read_text()).get(storage)
    if row is None:
        raise Failure(f"storage '{storage}' does not exist")
    return f"{ROOT}{row['path']}/{rest}"


def _volume(volume: str) -> Path:
    storage, _, name = volume.partition(":")
    return STATE / "volumes" / storage / name


def _nothing_copies(what: str) -> None:
    if (STATE / "copying").exists():
        raise Failure(f"lvremove of {what} error: Logical volume is in use.")


def _take_keys(settings: dict[str, str]) -> None:
    """`--sshkeys FILE`: each line must be one that `ssh-keygen -l` reads, and is kept encoded."""
    if "sshkeys" not in settings:
        return
    text = Path(settings["sshkeys"]).read_text()
    for line in text.splitlines():
        if line.strip() and not re.fullmatch(r"(ssh|ecdsa|sk)-\S+ [A-Za-z0-9+/=]+( \S+)?", line):
            raise Failure("SSH public key validation error")
        blob = base64.b64decode(line.split()[1]) if line.strip() else b""
        while blob:  # ssh-keygen reads one string after the other, to the last byte
            length = 4 + int.from_bytes(blob[:4])
            if len(blob) < length:
                raise Failure("SSH public key validation error")
            blob = blob[length:]
    settings["sshkeys"] = quote(text, safe="")


def _allocate(vmid: str, settings: dict[str, str]) -> None:
    storages = json.loads((STATE / "storages.json").read_text())
    for key, value in list(settings.items()):
        if not re.fullmatch(r"(ide|sata|scsi|virtio|efidisk)\d+", key):
            continue
        first, _, rest = value.partition(",")
        storage, _, what = first.partition(":")
        if storage not in storages or not storages[storage]["enabled"]:
            raise Failure(f"storage '{storage}' does not exist")
        if "images" not in storages[storage]["content"]:
            raise Failure(f"storage '{storage}' does not support content-type 'images'")
        source = re.search(r"import-from=([^,]+)", rest)
        if what == "cloudinit":
            name, size, rest = f"vm-{vmid}-cloudinit", 4 * 2**20, "media=cdrom"
        else:
            number = len(list((STATE / "volumes" / storage).glob(f"vm-{vmid}-disk-*")))
            name, size = f"vm-{vmid}-disk-{number}", int(what) * GIB
        if source:
            size = _import(Path(source[1]))
            rest = rest.replace(f"import-from={source[1]}", f"size={size}").lstrip(",")
        folder = STATE / "volumes" / storage
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(str(size))
        settings[key] = f"{storage}:{name},{rest}".rstrip(",")


def _import(path: Path) -> int:
    if not path.is_file():
        raise Failure(f"{path}: no such file")
    size = int.from_bytes(path.read_bytes()[24:32])
    for part in (1, 2, 4):
        print(
            f"transferred {size * part / 4 / GIB:.1f} GiB of {size / GIB:.1f} GiB ({part * 25:.2f}%)", flush=True
        )
    return size


def _read(vmid: str) -> dict[str, str]:
    path = CONFIGS / f"{vmid}.conf"
    if not path.exists():
        raise Failure(f"Configuration file 'nodes/{NODE}/qemu-server/{vmid}.conf' does not exist")
    return dict(line.split(": ", 1) for line in path.read_text().splitlines() if ": " in line)


def _write(vmid: str, settings: dict[str, str]) -> None:
    text = "".join(f"{key}: {value}\n" for key, value in sorted(settings.items()))
    part = CONFIGS / f".{vmid}.{os.getpid()}"
    part.write_text(text)
    part.replace(CONFIGS / f"{vmid}.conf")


if __name__ == "__main__":
    main()
