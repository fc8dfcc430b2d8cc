"""An `ib_write_bw` of the tests' own: it speaks perftest's command line, meets its other end over TCP and prints
perftest's tables. What goes wrong is written in `faults.json` beside it, and is read anew by each run:

    {"*": {...}, "mlx5_1": {...}}, and of each: "client" and "server" → a fault's name, "gbps" → what is measured.

It is copied into a node's folder by `write_perftest`, and imports nothing of the product.
"""

import json
import os
import signal
import socket
import sys
import time

LINE = "-" * 87
WITH_VALUE = {"-d": "device", "-i": "port", "-p": "tcp_port", "-s": "size", "-D": "seconds", "-x": "gid"}
FLAGS = {"-F": "no_cpu_warning", "--report_gbits": "gbits", "--ipv6-addr": "ipv6"}
FOLDER = os.path.dirname(os.path.abspath(sys.argv[0]))


def fail(*lines):
    sys.stdout.flush()
    for line in lines:
        sys.stderr.write(f" {line}\n")
    sys.exit(1)


def parse(words):
    options = {"tcp_port": "18515", "port": "1", "size": "65536", "host": None}
    words = list(words)
    while words:
        word = words.pop(0)
        if word in WITH_VALUE and words:
            options[WITH_VALUE[word]] = words.pop(0)
        elif word in FLAGS:
            options[FLAGS[word]] = True
        elif word.startswith("-") or options["host"] is not None:
            fail(f"ib_write_bw: unrecognized option '{word}'", "Invalid Command line.")
        else:
            options["host"] = word
    return options


def read_json(name):
    try:
        with open(os.path.join(FOLDER, name)) as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def read_tree(device, name):
    settings = read_json("perftest.json")
    try:
        with open(os.path.join(settings["ib_root"], device, name)) as file:
            return file.read().strip()
    except OSError:
        return None


def banner(options, link):
    print(LINE)
    print("                    RDMA_Write BW Test")
    print(f" Dual-port       : OFF\t\tDevice         : {options['device']}")
    print(" Number of qps   : 1\t\tTransport type : IB")
    print(" Connection type : RC\t\tUsing SRQ      : OFF")
    print(f" Link type       : {'Ethernet' if link == 'Ethernet' else 'IB'}")
    if "gid" in options:
        print(f" GID index       : {options['gid']}")
    print(" Data ex. method : Ethernet")
    print(LINE)
    print(" local address: LID 0x6c QPN 0x0050 PSN 0xddd611")
    print(" remote address: LID 0x28 QPN 0x0050 PSN 0xa3c746")
    print(LINE)


def table(options, gbps):
    # MB/sec in all versions before March 2024, MiB/sec since: the same 2^20 bytes under two names.
    unit = "Gb" if "gbits" in options else read_json("perftest.json").get("unit", "MB")
    value = gbps if unit == "Gb" else gbps * 1e9 / 8 / 2**20
    print(f" #bytes     #iterations    BW peak[{unit}/sec]    BW average[{unit}/sec]   MsgRate[Mpps]")
    print(f" {options['size']}    29610            0.00               {value:.2f} \t\t   0.005860")
    print(LINE)


def meet(options, role):
    """The connection to the other end, whose file says one line of options."""
    family = socket.AF_INET6 if "ipv6" in options else socket.AF_INET
    port = int(options["tcp_port"])
    if role == "client":
        try:
            connection = socket.create_connection((options["host"], port), 5)
        except OSError:
            fail(
                f"Couldn't connect to {options['host']}:{port}",
                "Unable to open file descriptor for socket connection",
            )
        connection.settimeout(None)
        return connection
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("", port))
    except OSError:
        fail(f"Couldn't listen to port {port}", "Unable to init the socket connection")
    listener.listen(1)
    connection, _ = listener.accept()
    listener.close()
    return connection


def is_gone(connection):
    """Whether the other end has closed its side, which an adapter notices when nobody acknowledges."""
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.setblocking(True)


def main():
    options = parse(sys.argv[1:])
    role = "server" if options["host"] is None else "client"
    with open(os.path.join(FOLDER, "perftest.calls"), "a") as file:
        file.write(json.dumps([role, os.getpid(), *sys.argv[1:]]) + "\n")
    faults = read_json("faults.json")
    told = {**faults.get("*", {}), **faults.get(options["device"], {})}
    fault = told.get(role)

    device = options["device"]
    state = read_tree(device, f"ports/{options['port']}/state")
    if state is None:
        fail(f"IB device {device} not found", "Unable to find the Infiniband/RoCE device")
    if "ACTIVE" not in state:
        fail(f"Port number {options['port']} state is Down", "Couldn't set the link layer")
    link = read_tree(device, f"ports/{options['port']}/link_layer")
    if "gid" in options and read_tree(device, f"ports/{options['port']}/gids/{options['gid']}") is None:
        fail(f"Failed to query GID index {options['gid']}", "Unable to set up socket connection")

    if fault == "hang before":
        time.sleep(600)
    if role == "server":
        print("\n************************************")
        print("* Waiting for client to connect... *")
        print("************************************")
    if fault == "refused":
        fail(
            f"Couldn't connect to {options['host']}:{options['tcp_port']}", "Unable to init the socket connection"
        )
    connection = meet(options, role)
    lines = connection.makefile("rw")
    rate = float(read_tree(device, f"ports/{options['port']}/rate").split()[0])
    mine = {key: options.get(key) for key in ("size", "seconds", "gbits", "ipv6")}
    lines.write(json.dumps({"options": mine, "link": link, "gbps": told.get("gbps", rate * 0.975)}) + "\n")
    lines.flush()
    try:
        theirs = json.loads(lines.readline() or "null")
    except (OSError, ValueError):
        theirs = None
    if theirs is None:
        fail(
            "ethernet_read_keys: Couldn't read remote address",
            "Failed to exchange data between server and clients",
        )
    if theirs["options"] != mine or theirs["link"] != link:
        fail("Failed to exchange data between server and clients")
    banner(options, link)
    if fault == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hang":
        time.sleep(600)
    if role == "client":
        time.sleep(float(options["seconds"]) * read_json("perftest.json").get("time", 0.02))
        if is_gone(connection):
            fail("Completion with error at client", "Failed status 12: wr_id 0 syndrom 0x81", "scnt=128, ccnt=0")
        table(options, min(told.get("gbps", rate * 0.975), theirs["gbps"]))
        lines.write("done\n")
        lines.flush()
    # A server end whose client is gone without a word fails as the client does.
    if not lines.readline() and role == "server":
        fail("Failed to exchange data between server and clients")
    if role == "server":
        lines.write("done\n")
        lines.flush()


if __name__ == "__main__":
    main()
