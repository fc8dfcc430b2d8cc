"""`llmgw sim engine`: the simulated engine, with an OpenAI-compatible API, multi-node rendezvous and faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from llmgw.sim.engine_nccl import NcclLog

_SPEEDS = "Speeds"
_REPLICA = "Replicas of several nodes"
_FAULTS = "Faults (also at run time: `llmgw sim fault`)"


def engine(
    served_name: Annotated[list[str], typer.Option(help="A name to answer to. Give it again for aliases.")],
    host: Annotated[str, typer.Option(help="Address to serve on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve on; 0 is any free one.")] = 8000,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of this shard, for the log.")] = 0,
    gpu_memory_mib: Annotated[int, typer.Option(min=0, help="Memory to hold on each simulated GPU.")] = 20480,
    max_model_len: Annotated[int, typer.Option(min=16, max=1_000_000, help="Context length.")] = 32768,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Requests that run at a time.")] = 256,
    answer_tokens: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Length of an answer that nothing else limits.")
    ] = 64,
    shutdown_timeout_s: Annotated[
        float, typer.Option(min=0, help="How long SIGTERM lets streams finish. 0 aborts them.")
    ] = 0.0,
    load_s: Annotated[float, typer.Option(min=0, rich_help_panel=_SPEEDS, help="How long loading takes.")] = 0.0,
    tokens_per_s: Annotated[
        float, typer.Option(min=0.001, rich_help_panel=_SPEEDS, help="Tokens a second of each stream.")
    ] = 50.0,
    prefill_tokens_per_s: Annotated[
        float, typer.Option(min=0.001, rich_help_panel=_SPEEDS, help="Prompt tokens read a second.")
    ] = 5000.0,
    slow_first_token_s: Annotated[
        float, typer.Option(min=0, rich_help_panel=_SPEEDS, help="Added before each first token.")
    ] = 0.0,
    rank: Annotated[
        int, typer.Option(min=0, rich_help_panel=_REPLICA, help="0 leads; others serve nothing.")
    ] = 0,
    nnodes: Annotated[int, typer.Option(min=1, rich_help_panel=_REPLICA, help="Shards of the replica.")] = 1,
    group: Annotated[str, typer.Option(rich_help_panel=_REPLICA, help="The replica; others are refused.")] = "",
    rendezvous_host: Annotated[
        str | None, typer.Option(rich_help_panel=_REPLICA, help="Where rank 0 waits for workers.")
    ] = None,
    rendezvous_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="And the port there.", rich_help_panel=_REPLICA)
    ] = None,
    rendezvous_timeout_s: Annotated[
        float, typer.Option(min=0.01, rich_help_panel=_REPLICA, help="How long all may take to join.")
    ] = 120.0,
    nccl_log: Annotated[
        str, typer.Option(rich_help_panel=_REPLICA, help="Network that it says it uses: ib, socket or none.")
    ] = "ib",
    fail_load: Annotated[
        bool, typer.Option("--fail-load", rich_help_panel=_FAULTS, help="Run out of memory after --load-s.")
    ] = False,
    never_join: Annotated[
        bool, typer.Option("--never-join", rich_help_panel=_FAULTS, help="A worker that never meets its leader.")
    ] = False,
    crash_after: Annotated[
        int | None, typer.Option(min=0, rich_help_panel=_FAULTS, help="Die when this many requests are answered.")
    ] = None,
    core_dead: Annotated[
        bool, typer.Option("--core-dead", rich_help_panel=_FAULTS, help="/health says 200, nothing else works.")
    ] = False,
    core_dead_after: Annotated[
        int | None, typer.Option(min=0, rich_help_panel=_FAULTS, help="The same after this many requests.")
    ] = None,
    core_dead_mode: Annotated[
        str, typer.Option(rich_help_panel=_FAULTS, help="What requests get then: hang or error.")
    ] = "hang",
    stall_after_tokens: Annotated[
        int | None, typer.Option(min=0, rich_help_panel=_FAULTS, help="Streams stop here and stay open.")
    ] = None,
    error_500_after: Annotated[
        int | None, typer.Option(min=0, rich_help_panel=_FAULTS, help="Answer 500 after this many requests.")
    ] = None,
    error_rate: Annotated[
        float, typer.Option(min=0, max=1, rich_help_panel=_FAULTS, help="Share of requests that get a 500.")
    ] = 0.0,
    reset_rate: Annotated[
        float,
        typer.Option(min=0, max=1, rich_help_panel=_FAULTS, help="Share of requests reset in mid-header."),
    ] = 0.0,
    reset_after_tokens: Annotated[
        int | None, typer.Option(min=0, rich_help_panel=_FAULTS, help="Connections are reset here.")
    ] = None,
    ignore_sigterm: Annotated[
        bool, typer.Option("--ignore-sigterm", rich_help_panel=_FAULTS, help="Only SIGKILL ends it.")
    ] = False,
    metrics_silent: Annotated[
        bool, typer.Option("--metrics-silent", rich_help_panel=_FAULTS, help="/metrics answers nobody.")
    ] = False,
) -> None:
    """Run a simulated engine: vLLM's API and metrics, no GPU, answers that can be foretold."""
    from llmgw.sim.engine import complain, run
    from llmgw.sim.engine_faults import Faults
    from llmgw.sim.engine_options import Options

    faults = Faults()
    try:
        faults.change(
            {
                "tokens_per_s": tokens_per_s,
                "prefill_tokens_per_s": prefill_tokens_per_s,
                "slow_first_token_s": slow_first_token_s,
                "crash_after": crash_after,
                "core_dead": core_dead,
                "core_dead_after": core_dead_after,
                "core_dead_mode": core_dead_mode,
                "stall_after_tokens": stall_after_tokens,
                "error_500_after": error_500_after,
                "error_rate": error_rate,
                "reset_rate": reset_rate,
                "reset_after_tokens": reset_after_tokens,
                "ignore_sigterm": ignore_sigterm,
                "metrics_silent": metrics_silent,
            }
        )
    except ValueError as error:
        complain(str(error))
        raise typer.Exit(2) from None
    options = Options(
        served_names=list(dict.fromkeys(served_name)),
        host=host,
        port=port,
        gpus=gpus,
        gpu_memory_mib=gpu_memory_mib,
        rank=rank,
        nnodes=nnodes,
        group=group,
        rendezvous_host=rendezvous_host,
        rendezvous_port=rendezvous_port,
        rendezvous_timeout_s=rendezvous_timeout_s,
        load_s=load_s,
        nccl_log=cast("NcclLog", nccl_log),
        fail_load=fail_load,
        never_join=never_join,
        answer_tokens=answer_tokens,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        shutdown_timeout_s=shutdown_timeout_s,
        faults=faults,
    )
    problem = options.problem()
    if problem is not None:
        complain(problem)
        raise typer.Exit(2)
    raise typer.Exit(run(options))
