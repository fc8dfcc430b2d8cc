"""/admin/nodes: the list and its filter, a node with everything that is known of it, and what is done to it."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from llmgw.messages.admin import HistoryEntry
from llmgw.messages.agent import FabricOffer, Gpu, MigDevice, Port
from llmgw.messages.findings import Finding
from llmgw.server.admin.backend import AdminError
from llmgw.server.pages.node_list import find_nodes
from llmgw.server.store.errors import StoreError
from tests.ctl.scripted import TOKEN, ScriptedBackend, ServedAdmin, node, replica
from tests.pages.big_fleet import big_gpu, big_node, big_port, gpu_finding, troubled_backend
from tests.pages.fabrics import HOSTILE
from tests.pages.visitor import Visitor, words

CHANGES = ["drain", "undrain", "cordon", "uncordon"]


def read(visitor: Visitor, path: str) -> str:
    answer = visitor.http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


def changes_asked(backend: ScriptedBackend) -> list[tuple[Any, ...]]:
    return [asked for asked in backend.asked if asked[0] in ("drain", "undrain", "cordon")]


# The list.


def test_the_list_has_problems_first_and_a_row_for_each_node(troubled: Visitor) -> None:
    page = read(troubled, "/admin/nodes")
    names = re.findall(r'<th scope="row"><a href="/admin/nodes/gpu-node-00(\d\d)">', page)
    assert names == ["03", "04", "02", "08", "09", "10", "11", "12", "05", "06", "01", "07", "13", "14"]
    said = words(page)
    assert "gpu-node-0003 ✕ lost nothing was heard for 95 s 4 of 8 ib-a 0.1.0" in said
    assert "gpu-node-0002 ● ready 4 of 8 ▲ 3 out ib-a 0.1.0" in said
    assert "gpu-node-0005 ● ready ▲ draining 4 of 8 ib-a 0.0.9 ▲ other" in said
    assert "gpu-node-0007 ● ready none – 0.1.0" in said


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("", 14),
        ("0003", 1),
        ("LOST", 1),
        ("draining", 1),
        ("gpu-unusable", 6),
        ("gpu-unusable 0002", 1),
        ("broken", 1),
        ("h200", 13),
        ("model-0009", 1),
        ("mlx5_3 cordoned", 1),
        ("nothing-of-it", 0),
    ],
)
def test_the_filter_finds_nodes_by_what_is_said_of_them(asked: str, found: int) -> None:
    assert len(find_nodes(troubled_backend().nodes_known, asked)) == found


def test_the_filter_works_without_a_script_and_says_how_many_it_found(troubled: Visitor) -> None:
    page = read(troubled, "/admin/nodes?q=%20lost%20%20")
    assert "1 of 14 nodes with “lost”" in words(page)
    assert 'name="q" value="lost"' in page
    assert "No node has all of these words." in words(read(troubled, "/admin/nodes?q=lost+ready"))
    assert troubled.http.get("/admin/nodes", params={"q": "x" * 1000}).status_code == 400
    assert troubled.http.get("/admin/nodes?q=a&q=b").status_code == 400
    assert "<script>window" not in read(troubled, f"/admin/nodes?q={HOSTILE}")


def test_a_list_that_is_too_long_says_what_it_left_out(visitor: Visitor, backend: ScriptedBackend) -> None:
    backend.nodes_known = [big_node(number) for number in range(1, 521)]
    assert "and 20 more: filter for them." in words(read(visitor, "/admin/nodes"))


# A node.


def test_a_node_shows_its_gpus_with_what_runs_on_them(troubled: Visitor) -> None:
    page = read(troubled, "/admin/nodes/gpu-node-0002")
    said = words(page)
    assert "GPUs 8 × NVIDIA H200; Driver 570.86.15; CUDA 12.8" in said
    assert (
        "0 ● in use model-0002 26 % 127 GiB of 140 GiB 41 °C 512 of 700 W all 7 (NV18, by switch) mlx5_0" in said
    )
    assert "5 ✕ broken Xid 79: it fell off the bus –" in said
    assert "6 ▲ held process 812 holds 40960 MiB –" in said
    assert "7 ○ skipped" in said
    assert '<progress class="bar-of" max="100" value="26" aria-label="GPU 0 is busy">' in page
    assert '<progress class="bar-of" max="143771" value="130000" aria-label="Memory of GPU 0 in use">' in page
    assert "GPU 5 is not usable: Xid 79: it fell off the bus" in said
    assert "<code>llmgw ctl drain gpu-node-0002</code>" in page


def test_what_is_not_known_of_a_gpu_is_a_dash_and_what_differs_has_a_column(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    cut = Gpu(
        index=1,
        uuid="GPU-b",
        name="NVIDIA H100",
        mig=True,
        mig_devices=[MigDevice(profile="3g.40gb"), MigDevice()],
        driver_version="570.1",
        paths={0: "SYS"},
        nearest_adapters=[],
        memory_used_mib=7,
        uncorrected_ecc=3,
        corrected_ecc=1200,
        xids={94: 1, 63: 2},
        throttled=["power", "thermal"],
        power_w=411.6,
        power_limit_w=700.0,
    )
    gpus = [Gpu(index=0, uuid="GPU-a", name="NVIDIA H200", usable=False, reason="it hangs"), cut]
    backend.nodes_known = [node("node01", gpus=gpus, gpus_in_use=[])]
    said = words(read(visitor, "/admin/nodes/node01"))
    assert "0 NVIDIA H200 ✕ broken it hangs chat-large-1a2b rank 0 – – – – – – off –" in said
    assert "▲ 3 uncorrectable memory errors 1,200 corrected memory errors" in said
    assert "▲ Xid 63 (2 times), 94 (once) in the kernel's log ▲ clocks held down: power, thermal" in said
    assert "412 of 700 W" in said
    assert "none none on its NUMA node cut into 3g.40gb, unknown 570.1" in said


def test_a_node_shows_every_port_with_its_fabric_and_the_errors_it_counted(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    ports = [
        Port(adapter="mlx5_9", port=1, state="DOWN", phys_state="Disabled"),
        big_port(0),
        msgspec.structs.replace(big_port(3, down=True), bond="bond0"),
    ]
    offers = [
        FabricOffer(name="ib-a", adapters=["mlx5_0:1"], usable=True, rate_gbps=400),
        FabricOffer(name="ib-b", reason="mlx5_3 port 1 is not up; look at `ibstat`"),
    ]
    carried = {"mlx5_0:1": "ib-a", "mlx5_3:1": "ib-b"}
    backend.nodes_known = [node("node01", ports=ports, fabrics=offers, port_fabrics=carried)]
    page = read(visitor, "/admin/nodes/node01")
    said = words(page)
    assert "ib-a ● offered 400 Gb/s by mlx5_0:1" in said
    assert "ib-b ✕ not offered mlx5_3 port 1 is not up; look at ibstat" in said
    assert "mlx5_0:1 ib-a ● ACTIVE LinkUp 400 Gb/sec (4X NDR) InfiniBand 1 0x0000000000000000 none" in said
    assert "mlx5_3:1 in bond0 ib-b ✕ DOWN Polling – InfiniBand 4" in said
    assert "link_downed 255 or more, symbol_error 7" in said
    assert "port_xmit_data" not in said, "traffic is no error"
    assert "mlx5_9:1 – ○ DOWN Disabled – – – – –" in said, "down, and nothing needs it"
    assert said.index("mlx5_3:1") < said.index("mlx5_9:1"), "what carries a fabric first"
    assert '<a href="/admin/fabrics/ib-b">' in page


def test_a_node_shows_what_runs_there_and_how_it_stands(visitor: Visitor) -> None:
    page = read(visitor, "/admin/nodes/node01")
    said = words(page)
    assert "What runs 2 shards" in said
    assert "chat-large-1a2b org/chat-large /default 0 of 2, leads ● ready ● ready 0, 1 ib-a 0" in said
    assert "chat-small-3c4d chat-small /default 0 of 1 ▲ fetching ▲ starting 4 – 0 loading weights log" in said
    for link in (
        "/admin/replicas/chat-large-1a2b",
        "/admin/models/org/chat-large",
        "/admin/replicas/chat-small-3c4d/logs?rank=0",
        "/admin/history?subject=node01",
        "/api/v1/nodes/node01",
    ):
        assert f'href="{link}"' in page
        assert visitor.http.get(link).status_code in (200, 303), link


def test_what_the_fleet_alone_finds_of_a_node_is_said_where_the_node_is(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    own = Finding(check="gpu-xid", severity="warning", where="node01 GPU 3", what="node01: GPU 3 said Xid 94")
    backend.nodes_known = [
        node("node01", findings=[own]),
        node("node10", state="unreachable", reason="no message for 15 s, but its shards work"),
    ]
    backend.problems = [
        Finding(
            check="node-unreachable",
            severity="warning",
            where="node10",
            what="node10 is unreachable: no message for 15 s, but its shards work",
            remedy="look at the machine",
        )
    ]
    said = words(read(visitor, "/admin/nodes/node10"))
    assert "Nothing is wrong" not in said
    assert "What is wrong 1 ▲ warning node10 is unreachable: no message for 15 s" in said
    assert "look at the machine" in said
    assert "What is wrong 1 " in words(read(visitor, "/admin/nodes/node01")), "its own finding, and once"
    page = read(visitor, "/admin/nodes?q=node-unreachable")
    assert re.findall(r'<th scope="row"><a href="/admin/nodes/(\w+)">', page) == ["node10"]
    assert re.search(r'<td class="number">1</td>\s*</tr>', page), "it is counted"
    assert "node-unreachable" in read(visitor, "/admin").partition('id="nodes"')[2], "on its tile"


def test_a_node_shows_its_agent_its_certificate_and_its_engines(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    backend.nodes_known = [
        node("node01", version="0.0.9", engines=["vllm", "sim (it is not installed)"], certificate_expires_at=1e9)
    ]
    said = words(read(visitor, "/admin/nodes/node01"))
    assert "Version 0.0.9 ▲ the server is 0.1.0" in said
    assert "✕ it has expired: llmgw ctl cert renew node01" in said
    assert "Engines vllm, sim (it is not installed)" in said
    backend.nodes_known = [node("node01", certificate_expires_at=None, last_heard_s=None, address=None)]
    said = words(read(visitor, "/admin/nodes/node01"))
    assert "Address – Last heard – Registered – Certificate ends –" in said


def test_a_node_shows_what_happened_to_it_lately(visitor: Visitor, backend: ScriptedBackend) -> None:
    said = words(read(visitor, "/admin/nodes/node01"))
    assert "What happened" in said
    assert "a one-token request was answered" in said
    assert ("history", "node01", None, None, None, 10) in backend.asked


def test_a_history_that_cannot_be_read_takes_nothing_else_from_the_page(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    async def broken(**asked: Any) -> list[HistoryEntry]:
        raise StoreError("the disk is full")

    backend.history = broken  # type: ignore[method-assign]
    said = words(read(visitor, "/admin/nodes/node01"))
    assert "▲ the disk is full" in said
    assert "NVIDIA H200" in said


def test_a_drain_says_what_is_left_and_why(visitor: Visitor, backend: ScriptedBackend) -> None:
    backend.nodes_known = [
        node(
            "node01",
            draining=True,
            drain_left=["big-1: no node has room"],
            drain_waits=["small-2: its requests run out"],
        ),
        node("node02", draining=True, replicas=[]),
    ]
    said = words(read(visitor, "/admin/nodes/node01"))
    assert "Draining 1 replica left ▲ Cannot be moved" in said
    assert "big-1: no node has room On its way: small-2: its requests run out" in said
    assert "Undrain Force the drain… What cannot be moved is stopped too" in said
    assert "Drained Nothing runs here." in words(read(visitor, "/admin/nodes/node02"))


def test_an_unknown_node_is_not_found_and_its_neighbours_are_named(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    backend.nodes_known = [node(f"gpu-rack{rack}-node{at:02}") for rack in range(4) for at in range(20)]
    answer = visitor.http.get("/admin/nodes/gpu-rack2-nod07")
    assert answer.status_code == 404
    said = words(answer.text)
    assert "There is no node gpu-rack2-nod07." in said
    assert '<a href="/admin/nodes/gpu-rack2-node07">' in answer.text
    assert "All 80 nodes" in said
    gone = words(visitor.http.get("/admin/nodes/node99").text)
    assert "There is no node node99 any more: it was removed" in gone
    hostile = visitor.http.get("/admin/nodes/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert hostile.status_code == 404
    assert "<script>alert" not in hostile.text
    assert visitor.http.get("/admin/nodes/a%00b").status_code == 400


def test_what_others_named_stays_text(visitor: Visitor, backend: ScriptedBackend) -> None:
    hostile = f"{HOSTILE}\"'><img src=x onerror=window.hacked=1>"
    gpu = big_gpu(
        hostile, 0, 1, name=hostile, uuid=hostile, reason=hostile, usable=False, driver_version=hostile,
        cuda_version=hostile, paths={1: f"NV{hostile}"}, nearest_adapters=[hostile], pci_bus_id=hostile,
        unusable_kind=hostile, mig=True, mig_devices=[MigDevice(profile=hostile)],
    )  # fmt: skip
    port = Port(
        adapter=hostile, port=1, state=hostile, phys_state=hostile, rate_text=hostile, link_layer=hostile,
        port_guid=hostile, bond=hostile, counters={f"{hostile}_errors": 7},
    )  # fmt: skip
    found = Finding(check=hostile, severity="error", where="node01 x", what=hostile, why=hostile, remedy=hostile)
    offer = FabricOffer(name=hostile, adapters=[hostile], reason=hostile)
    backend.nodes_known = [
        node(
            "node01",
            state=hostile,
            reason=hostile,
            version=hostile,
            address=hostile,
            gpus=[gpu, big_gpu("n", 1, 1)],
            ports=[port],
            port_fabrics={f"{hostile}:1": hostile},
            fabrics=[offer],
            engines=[hostile],
            findings=[found] * 5,
            draining=True,
            drain_left=[hostile],
            drain_waits=[hostile],
        )
    ]
    shards = [msgspec.structs.replace(replica("r").shards[0], reason=hostile, phase=hostile, node="node01")]
    backend.replicas_known = [
        replica(hostile, model=hostile, profile=hostile, fabric=hostile, state=hostile, shards=shards)
    ]
    for path in ("/admin/nodes/node01", "/admin/nodes", "/admin"):
        page = read(visitor, path)
        assert "<script>window" not in page, path
        assert "<img" not in page.replace('<img src="/admin/static', ""), path
    assert "window.hacked" in read(visitor, "/admin/nodes/node01"), "it is shown"


# What is done to it.


def test_a_node_is_drained_by_a_form_that_says_what_follows(visitor: Visitor, backend: ScriptedBackend) -> None:
    page = read(visitor, "/admin/nodes/node01")
    said = words(page)
    assert "2 shards of 1 replica will leave node01: each replacement is ready elsewhere" in said
    assert "Force: also stop what cannot be moved, and wait for no replacement." in said
    assert '<form method="post" action="/admin/nodes/node01/drain">' in page
    done = visitor.http.post("/admin/nodes/node01/drain", data={"csrf": visitor.csrf()})
    assert done.status_code == 303
    assert changes_asked(backend) == [("drain", "node01", False, "first")], "in the name of the token"
    assert '<div class="done" role="status">\n<p>drain was done</p>' in read(visitor, done.headers["location"])
    visitor.http.post("/admin/nodes/node01/drain", data={"csrf": visitor.csrf(), "force": "yes"})
    assert changes_asked(backend)[-1] == ("drain", "node01", True, "first")


def test_the_other_changes_are_forms_too_and_each_stands_where_it_makes_sense(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    backend.nodes_known = [node("node01"), node("node02", cordoned=True, draining=True)]
    offered = {
        name: set(re.findall(rf'action="/admin/nodes/{name}/(\w+)"', read(visitor, f"/admin/nodes/{name}")))
        for name in ("node01", "node02")
    }
    assert offered == {"node01": {"drain", "cordon"}, "node02": {"drain", "undrain", "uncordon"}}
    for change in CHANGES[1:]:
        done = visitor.http.post(f"/admin/nodes/node02/{change}", data={"csrf": visitor.csrf()})
        assert (done.status_code, done.headers["location"].partition("?")[0]) == (303, "/admin/nodes/node02")
    assert changes_asked(backend) == [
        ("undrain", "node02", "first"),
        ("cordon", "node02", True, "first"),
        ("cordon", "node02", False, "first"),
    ]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_no_page_of_this_session_sent_is_refused_and_nothing_is_asked(
    visitor: Visitor, backend: ScriptedBackend, served: ServedAdmin, change: str
) -> None:
    path = f"/admin/nodes/node01/{change}"
    other = Visitor(served.url)
    other.log_in()
    mine = visitor.csrf()
    refused = [
        visitor.http.post(path, data={"force": "yes"}),
        visitor.http.post(path, data={"csrf": "guess"}),
        visitor.http.post(path, data={"csrf": other.csrf()}),
        visitor.http.post(path, data={"csrf": mine}, headers={"origin": "https://elsewhere.example"}),
        visitor.http.post(path, data={"csrf": mine}, headers={"sec-fetch-site": "cross-site"}),
    ]
    assert [answer.status_code for answer in refused] == [403] * 5
    assert "nothing was changed" in words(refused[0].text)
    assert visitor.http.get(path).status_code == 404
    nobody = Visitor(served.url).http.post(path, data={"csrf": mine})
    assert nobody.status_code in (303, 401, 403)
    token = {"authorization": f"Bearer {TOKEN}"}
    assert Visitor(served.url).http.post(path, data={"csrf": ""}, headers=token).status_code == 403
    assert changes_asked(backend) == []


def test_a_change_that_cannot_be_done_is_a_page_with_a_sentence(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    async def refused(node_id: str, *, force: bool, by: str) -> Any:
        raise AdminError(503, "store", "nothing was changed, since it cannot be stored: the disk is full")

    backend.drain = refused  # type: ignore[method-assign]
    answer = visitor.http.post("/admin/nodes/node01/drain", data={"csrf": visitor.csrf()})
    assert answer.status_code == 503
    assert "Nothing was changed, since it cannot be stored: the disk is full." in words(answer.text)
    unknown = visitor.http.post("/admin/nodes/node77/cordon", data={"csrf": visitor.csrf()})
    assert unknown.status_code == 404
    assert "known: node01, node02" in words(unknown.text)
    assert visitor.http.post("/admin/nodes/NODE!/cordon", data={"csrf": visitor.csrf()}).status_code == 400


def test_whoever_reads_with_a_token_in_a_header_gets_no_forms(served: ServedAdmin) -> None:
    page = Visitor(served.url).http.get("/admin/nodes/node01", headers={"authorization": f"Bearer {TOKEN}"})
    assert page.status_code == 200
    assert "<form" not in page.text
    assert "Drain and cordon it with llmgw ctl" in words(page.text)


def test_many_findings_of_a_node_stay_apart_from_those_of_others(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    backend.nodes_known[0] = node("node01", findings=[gpu_finding(1)])
    assert "port 1 of mlx5_1 is DOWN" not in words(read(visitor, "/admin/nodes/node01"))
