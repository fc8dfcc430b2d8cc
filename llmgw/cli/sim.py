"""`llmgw sim …`: simulated hardware, and the simulated engine."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from llmgw.cli.sim_engine import engine
from llmgw.cli.sim_fault import fault

app = typer.Typer(no_args_is_help=True, help="Simulated hardware and a simulated engine: a fleet without GPUs.")


class LinkLayer(StrEnum):
    """What runs on the adapters' cables."""

    InfiniBand = "InfiniBand"
    Ethernet = "Ethernet"


class State(StrEnum):
    """A port's state."""

    down = "down"
    init = "init"
    slow = "slow"
    unaddressed = "unaddressed"
    active = "active"


class Health(StrEnum):
    """A GPU's state."""

    ok = "ok"
    reset = "reset"
    ecc = "ecc"
    lost = "lost"
    xid = "xid"
    unlinked = "unlinked"


class NvLink(StrEnum):
    """How GPUs are joined."""

    switch = "switch"
    pairs = "pairs"
    none = "none"


class CableState(StrEnum):
    """A cable's state."""

    up = "up"
    slow = "slow"
    down = "down"


class Machine(StrEnum):
    """What programs need to use adapters."""

    ok = "ok"
    memlock = "memlock"
    files = "files"
    no_devices = "no-devices"
    no_gpudirect = "no-gpudirect"


Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of one simulated node.")]
Made = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="The folder of one simulated node, or a node of the demo that runs here."),
]


@app.command()
def hardware(
    directory: Directory,
    gpus: Annotated[int, typer.Option(help="GPUs.")] = 8,
    adapters: Annotated[int, typer.Option(help="InfiniBand adapters, mlx5_0 and on.")] = 2,
    rate: Annotated[float, typer.Option(help="Link rate in Gb/s: 40, 56, 100, 200, 400 or 800.")] = 400,
    gpu_name: Annotated[str, typer.Option(help="What the GPUs are called.")] = "NVIDIA H100 80GB HBM3",
    memory_mib: Annotated[int, typer.Option(help="Memory of each GPU in MiB.")] = 81559,
    link_layer: Annotated[
        LinkLayer, typer.Option(case_sensitive=False, help="InfiniBand, or Ethernet for RoCE.")
    ] = LinkLayer.InfiniBand,
    node: Annotated[
        str | None, typer.Option(help="Node id: UUIDs and GUIDs are made from it. Default: this host's name.")
    ] = None,
    sm_lid: Annotated[int, typer.Option(help="LID of the subnet manager.")] = 1,
    nvlink: Annotated[NvLink, typer.Option(help="How the GPUs are joined.")] = NvLink.switch,
    unified_memory: Annotated[
        bool, typer.Option("--unified-memory", help="GPUs without memory of their own, as on a GB10.")
    ] = False,
) -> None:
    """Write an nvidia-smi program and a sysfs-shaped tree that an agent cannot tell from a node."""
    from llmgw.sim.hardware import write_hardware

    made = write_hardware(
        directory,
        gpus=gpus,
        adapters=adapters,
        rate_gbps=rate,
        gpu_name=gpu_name,
        memory_mib=memory_mib,
        link_layer=link_layer.value,
        node=node,
        sm_lid=sm_lid,
        nvlink=nvlink.value,
        unified_memory=unified_memory,
    )
    typer.echo(f"# {gpus} GPUs and {adapters} adapters. In agent.yaml:")
    typer.echo(f"discovery:\n  nvidia_smi: {made.nvidia_smi}\n  ib_root: {made.ib_root}")


@app.command()
def port(
    directory: Made,
    adapter: Annotated[str, typer.Argument(metavar="ADAPTER", help="For example mlx5_0.")],
    state: Annotated[
        State,
        typer.Argument(
            metavar="down|init|slow|unaddressed|active",
            help="No cable, no subnet manager, one lane of four, RoCE without an address, or working.",
        ),
    ],
    number: Annotated[int, typer.Option("--port", help="The adapter's port.")] = 1,
) -> None:
    """Take a port down, leave it without a subnet manager, or bring it back, while agents look."""
    from llmgw.sim.hardware import set_port
    from llmgw.sim.power import hardware_of

    set_port(hardware_of(directory), adapter, state.value, port=number)
    typer.echo(f"{adapter} port {number} is {state.value}")


@app.command()
def gpu(
    directory: Made,
    index: Annotated[int, typer.Argument(metavar="INDEX", help="The GPU's index.")],
    state: Annotated[
        Health,
        typer.Argument(
            metavar="ok|reset|ecc|lost|xid|unlinked",
            help="Whole, needs a reset, memory error, off the bus, fatal error in the kernel log, NVLinks gone.",
        ),
    ],
) -> None:
    """Break a GPU as real ones break, or mend it, while agents look."""
    from llmgw.sim.hardware import set_gpu
    from llmgw.sim.power import hardware_of

    set_gpu(hardware_of(directory), index, state.value)
    typer.echo(f"GPU {index} is {state.value}")


@app.command()
def machine(
    directory: Made,
    state: Annotated[
        Machine,
        typer.Argument(
            metavar="ok|memlock|files|no-devices|no-gpudirect",
            help="Whole, no memory to lock, few files to open, no /dev/infiniband, no peer memory.",
        ),
    ],
) -> None:
    """Take away what programs need to use adapters, or give it back."""
    from llmgw.sim.hardware import set_machine
    from llmgw.sim.power import hardware_of

    set_machine(hardware_of(directory), state.value)
    typer.echo(f"the machine is {state.value}")


@app.command("power-off")
def power_off(
    node: Annotated[str, typer.Argument(metavar="NODE", help="node01 to node04 of the demo that runs here.")],
) -> None:
    """Kill a node of the running demo, agent and engines, as a power cut would."""
    from llmgw.sim.power import power_off, running_demo

    killed = power_off(running_demo(), node)
    typer.echo(f"{node} is off; killed: {', '.join(killed)}" if killed else f"{node} was off already")


@app.command()
def cable(
    fabric: Annotated[str, typer.Argument(metavar="FABRIC", help="A fabric of the demo that runs here: ib-a.")],
    device: Annotated[str, typer.Argument(metavar="END", help="One end: ib-a-leaf-1, or node01:mlx5_0.")],
    port_number: Annotated[int, typer.Argument(metavar="PORT", help="Its port there.")],
    state: Annotated[
        CableState,
        typer.Argument(metavar="up|slow|down", help="Whole, trained too slowly, or pulled out."),
    ],
) -> None:
    """Pull a cable of the running demo's fabric, let it train too slowly, or put it right."""
    from llmgw.sim.fabric.change import fabric_path, set_cable
    from llmgw.sim.power import running_demo

    ends = set_cable(fabric_path(running_demo(), fabric), device, port_number, state.value)
    typer.echo(f"the cable {ends} is {state.value}")


@app.command("stop-manager")
def stop_manager(
    fabric: Annotated[str, typer.Argument(metavar="FABRIC", help="A fabric of the demo that runs here: ib-a.")],
    host: Annotated[str | None, typer.Option(help="The manager's host. Default: the master's.")] = None,
    takes_s: Annotated[
        float, typer.Option(min=0, help="Seconds until the standby notices; OpenSM's own settings take 30 to 45.")
    ] = 8.0,
) -> None:
    """Kill a subnet manager of the running demo's fabric. Nothing answers until the standby takes over."""
    from llmgw.sim.fabric.change import elect, fabric_path, stop_manager
    from llmgw.sim.power import running_demo

    path = fabric_path(running_demo(), fabric)
    stopped, was_master = stop_manager(path, host)
    if not was_master:
        typer.echo(f"the standby on {stopped} is dead")
        return
    typer.echo(f"the master on {stopped} is dead; a standby notices in {takes_s:g} s")
    try:
        time.sleep(takes_s)
    finally:
        master = elect(path)
    typer.echo(f"{master} is master now" if master else f"{fabric} has no subnet manager any more")


@app.command("start-managers")
def start_managers(
    fabric: Annotated[str, typer.Argument(metavar="FABRIC", help="A fabric of the demo that runs here: ib-a.")],
) -> None:
    """Start every subnet manager of the running demo's fabric that was killed."""
    from llmgw.sim.fabric.change import fabric_path, start_managers
    from llmgw.sim.power import running_demo

    start_managers(fabric_path(running_demo(), fabric))
    typer.echo(f"all subnet managers of {fabric} run")


app.command()(engine)
app.command()(fault)
