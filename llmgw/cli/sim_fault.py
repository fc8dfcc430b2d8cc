"""`llmgw sim fault`: switches the faults of a simulated engine while it runs."""

from __future__ import annotations

from typing import Annotated

import typer


def fault(
    engine: Annotated[
        str,
        typer.Argument(metavar="ENGINE", help="A replica of the demo that runs here, or any engine's HOST:PORT."),
    ],
    faults: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...",
            help="Such as error_rate=0.5, reset_rate=1, reset_after_tokens=5, stall_after_tokens=3, "
            "tokens_per_s=2, slow_first_token_s=4, core_dead=true; off for none. Or ok alone: as it was started.",
        ),
    ] = None,
) -> None:
    """Have a simulated engine fail as real ones do, or mend it, while it runs. Without a fault: show all."""
    import os
    from pathlib import Path

    from llmgw.cli.ctl.client import AdminClient, shaped
    from llmgw.cli.ctl.find import Wanted, find_server
    from llmgw.cli.ctl.replicas import resolve
    from llmgw.messages.admin import ReplicaView
    from llmgw.sim.engine_switch import SwitchError, read_faults, switch
    from llmgw.sim.power import running_demo

    changes = None if faults == ["ok"] else read_faults(faults or [])
    address = engine
    if ":" not in engine:
        environ = {**os.environ, "LLMGW_STATE": str(running_demo() / "state")}
        with AdminClient(find_server(Wanted(), environ, Path.cwd(), Path.home())) as api:
            replica = resolve(api, engine)
            view = shaped(api.get(f"replicas/{replica}"), ReplicaView)
        if view.endpoint is None:
            raise SwitchError(f"{replica} is {view.state} and serves nowhere yet; wait until it is ready")
        address = view.endpoint
    for name, value in switch(address, changes).items():
        typer.echo(
            f"{name}={'off' if value is None else str(value).lower() if isinstance(value, bool) else value}"
        )
