"""`llmgw ctl`: the commands that ask and change a running server. Each group is a module of its own."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import typer

from llmgw.cli.ctl import (
    audit,
    catalog,
    engine_check,
    fabric_test,
    fabrics,
    history,
    keys,
    logs,
    models,
    node_remove,
    nodes,
    release,
    replicas,
    requests,
    status,
    tokens,
    top,
    upgrade,
    usage,
)
from llmgw.cli.ctl.options import group_options

app = typer.Typer(
    name="ctl",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Ask and steer a server: nodes, replicas, models, history, audit log, API keys, certificates, tokens.",
)
app.callback()(group_options)

# In the order of a day's work.
for group in (
    status,
    top,
    nodes,
    replicas,
    fabrics,
    fabric_test,
    models,
    catalog,
    history,
    audit,
    requests,
    usage,
    logs,
    engine_check,
    upgrade,
):
    app.add_typer(group.app)
app.add_typer(catalog.catalog_app, name="catalog")
app.add_typer(node_remove.node_app, name="node")
app.add_typer(fabrics.fabric_app, name="fabric")
app.add_typer(keys.app, name="keys")
app.add_typer(tokens.app, name="token")
app.add_typer(release.app, name="release")
# An installation that only steers a server may do without the authority's part.
if find_spec("llmgw.cli.ctl.cert"):
    app.add_typer(import_module("llmgw.cli.ctl.cert").app, name="cert")
