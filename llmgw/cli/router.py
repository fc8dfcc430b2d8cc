"""`llmgw router`: one data-plane process. The server starts them by itself; under systemd each is a unit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def router(
    state: Annotated[Path, typer.Option(help="Folder for the control socket and the route table.")],
    listen: Annotated[str | None, typer.Option(help="HOST:PORT of the model API.")] = None,
    listen_fd: Annotated[
        list[int] | None, typer.Option(help="Descriptor of a listening socket that the parent opened.")
    ] = None,
    worker: Annotated[
        int, typer.Option(min=0, max=9999, help="Tells it from others on the same state folder.")
    ] = 0,
    share_of: Annotated[
        int, typer.Option(min=1, help="Limits are for so many routers together, and this is one of them.")
    ] = 1,
    body_bytes_max: Annotated[
        int, typer.Option(min=1024, help="Larger request bodies are answered with 413.")
    ] = 64 * 1024 * 1024,
    connect_timeout_s: Annotated[float, typer.Option(min=0.01, help="Longest wait for a connection.")] = 5.0,
    connections_max: Annotated[int, typer.Option(min=1, help="Clients served at a time.")] = 10_000,
    header_timeout_s: Annotated[float, typer.Option(min=0.1, help="Time for a request's head.")] = 30.0,
    idle_timeout_s: Annotated[float, typer.Option(min=0.1, help="How long idle clients are kept.")] = 75.0,
    ping_s: Annotated[
        float, typer.Option(min=0.05, help="How often streams that wait get a comment, for models with pings.")
    ] = 5.0,
    needs_keys: Annotated[
        bool | None,
        typer.Option(
            "--needs-keys/--needs-no-keys",
            help="Serve by the table on disk only if it says the same. Default: whatever it says.",
        ),
    ] = None,
    body_idle_timeout_s: Annotated[
        float, typer.Option(min=0.1, help="Longest silence within a request body.")
    ] = 60.0,
    stall_timeout_s: Annotated[
        float, typer.Option(min=0.1, help="A client that takes nothing of its answer for so long is cut.")
    ] = 300.0,
    drain_s: Annotated[float, typer.Option(min=0.0, help="Time for running requests after SIGTERM.")] = 30.0,
    tls_cert: Annotated[
        str | None, typer.Option(help="Certificate for clients (PEM), followed by its intermediates.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(help="Its private key.")] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="A web origin whose pages may read answers; * for all.")
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None, typer.Option(help="Network of proxies whose Forwarded headers are believed.")
    ] = None,
    trace_endpoint: Annotated[
        str | None, typer.Option(help="URL of an OpenTelemetry collector (OTLP over HTTP) that gets spans.")
    ] = None,
    trace_headers_file: Annotated[
        str | None, typer.Option(help="File with headers for the collector, name: value a line.")
    ] = None,
    trace_ca: Annotated[str | None, typer.Option(help="Certificate that the collector's leads back to.")] = None,
    trace_sample: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of requests that is traced.")
    ] = 0.1,
    settings: Annotated[
        str, typer.Option(help="Told to control processes, which know by it what they started.")
    ] = "",
    ignore_sigint: Annotated[bool, typer.Option("--ignore-sigint", help="Leave Ctrl-C to the parent.")] = False,
) -> None:
    """Pass requests on to engines by the route table that the control process sends."""
    from llmgw.config.origins import parse_network, parse_origin
    from llmgw.config.tracing import parse_trace_endpoint
    from llmgw.router.limits import Limits
    from llmgw.router.main import RouterOptions, TraceOptions, run_router

    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("--tls-cert and --tls-key belong together; give both, or neither")
    try:
        origins = tuple(parse_origin(origin) for origin in cors_origin or ())
        proxies = tuple(parse_network(network) for network in trusted_proxy or ())
        collector = parse_trace_endpoint(trace_endpoint) if trace_endpoint is not None else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    limits = Limits(
        workers=share_of,
        body_bytes_max=body_bytes_max,
        connect_timeout_s=connect_timeout_s,
        connections_max=connections_max,
        header_timeout_s=header_timeout_s,
        idle_timeout_s=idle_timeout_s,
        ping_s=ping_s,
        body_idle_timeout_s=body_idle_timeout_s,
        stall_timeout_s=stall_timeout_s,
        drain_s=drain_s,
    )
    options = RouterOptions(
        state=state,
        listen=listen,
        listen_fds=tuple(listen_fd or ()),
        worker=worker,
        needs_keys=needs_keys,
        ignore_sigint=ignore_sigint,
        settings=settings,
        limits=limits,
        tls=(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None,
        cors_origins=origins,
        trusted_proxies=proxies,
        tracing=TraceOptions(collector, trace_headers_file, trace_ca, trace_sample) if collector else None,
    )
    run_router(options)
