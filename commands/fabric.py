"""`epctl fabric`: where the bytes of a batch go in a leaf-spine fabric."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from epctl.commands import options

FORMATS = ("text", "json", "csv", "html")
TABLES = ("traffic", "links", "flows")
Text = str | None


def fabric(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[compare A B]",
            help="Two variants side by side: rail tor, direct relay, unified pd, TOML or JSON files, or FLAG=VALUE,FLAG=VALUE.",
        ),
    ] = None,
    nodes: Annotated[Text, typer.Option("--nodes", metavar="N", help="Nodes (4).")] = None,
    gpus_per_node: Annotated[Text, typer.Option("--gpus-per-node", metavar="G", help="GPUs of a node (8).")] = None,
    spines: Annotated[Text, typer.Option("--spines", metavar="S", help="Spines of a plane (4).")] = None,
    wiring: Annotated[Text, typer.Option("--wiring", metavar="KIND", help="rail | tor (rail).")] = None,
    nodes_per_leaf: Annotated[
        Text, typer.Option("--nodes-per-leaf", metavar="P", help="Nodes that one leaf serves (rail: all, tor: 1).")
    ] = None,
    oversubscription: Annotated[
        Text, typer.Option("--oversubscription", metavar="R", help="NIC ports over uplinks of a leaf: 2, 2:1 (1).")
    ] = None,
    planes: Annotated[Text, typer.Option("--planes", metavar="N", help="Planes, a NIC port into each (1).")] = None,
    lost: Annotated[
        list[str] | None,
        typer.Option("--lost", metavar="PART", help="leaf0-spine1[.lane] | leaf0 | spine1 | nic5[.plane]; repeated."),
    ] = None,
    topology: Annotated[
        list[str] | None,
        typer.Option(
            "--topology",
            metavar="FILE|DIR",
            help="The fabric out of a TOML file, or JSON of `epctl topo` and all that it reads (repeated): flags add what that does "
            "not show.",
        ),
    ] = None,
    layout: Annotated[
        Text, typer.Option("--layout", metavar="NAME", help="unified | pd | af | pd+af (unified).")
    ] = None,
    traffic: Annotated[
        Text,
        typer.Option("--traffic", metavar="LIST", help="Of kv,dispatch,combine,a2f,f2a (all that the layout has)."),
    ] = None,
    phases: Annotated[Text, typer.Option("--phase", metavar="LIST", help="Of prefill,kv,decode (all).")] = None,
    transfer: Annotated[
        Text,
        typer.Option("--transfer", metavar="MODE", help="default (prefill relay, decode direct) | direct | relay."),
    ] = None,
    batch: Annotated[Text, typer.Option("--batch", metavar="B", help="Requests (32, or one a length).")] = None,
    lengths: Annotated[
        Text, typer.Option("--lengths", metavar="L", help="Prompt tokens: 82, a,b,c,… or 82+-50% (82).")
    ] = None,
    experts: Annotated[Text, typer.Option("--experts", metavar="E", help="Routed experts (the model's).")] = None,
    topk: Annotated[Text, typer.Option("--topk", metavar="K", help="Experts that a token picks (the model's).")] = None,
    model: Annotated[
        Text, typer.Option("--model", metavar="NAME", help="Preset (deepseek-v3); `list` names them.")
    ] = None,
    hidden: Annotated[Text, typer.Option("--hidden", metavar="H", help="Values of a token (the model's).")] = None,
    send_bytes: Annotated[Text, typer.Option("--send-bytes", metavar="B", help="Of a token sent (FP8: H).")] = None,
    return_bytes: Annotated[
        Text, typer.Option("--return-bytes", metavar="B", help="Of a token returned (BF16: 2 H).")
    ] = None,
    kv_bytes: Annotated[
        Text, typer.Option("--kv-bytes", metavar="B", help="KV of a token in all layers (the model's).")
    ] = None,
    gate: Annotated[
        Text,
        typer.Option("--gate", metavar="NAME|FILE", help="As for plan: balanced, zipf:1.0, hot:4:8, …, or a trace."),
    ] = None,
    seed: Annotated[Text, typer.Option("--seed", metavar="S", help="Of the gate and of the hash (0).")] = None,
    seeds: Annotated[Text, typer.Option("--seeds", metavar="N", help="Go through N seeds from S on (1).")] = None,
    redraw: Annotated[
        Text,
        typer.Option(
            "--redraw",
            metavar="WHAT",
            help="What a seed draws anew: auto | both | ecmp | routing (auto: both, within seconds).",
        ),
    ] = None,
    qps: Annotated[Text, typer.Option("--qps", metavar="Q", help="Queue pairs of two GPUs (1).")] = None,
    ports: Annotated[
        Text, typer.Option("--ports", metavar="P", help="UDP source ports that they spread over (16384).")
    ] = None,
    together: Annotated[
        Text, typer.Option("--together", metavar="LIST", help="Also at once: phases,micro-batches.")
    ] = None,
    what_if: Annotated[bool, typer.Option("--what-if", help="Also with 2, 4 and 8 QPs a pair, and one port.")] = False,
    show: Annotated[str, typer.Option("--show", help="Table of text and csv: traffic | links | flows.")] = "traffic",
    format: Annotated[str, typer.Option("--format", help=" | ".join(FORMATS))] = "text",  # noqa: A002
    output: options.Output = None,
) -> None:
    """Show where the bytes of a batch go, link by link.

    RDMA, spines, NVLink, the fullest link, and what the hash makes of it.

    Exit code: 0 computed, 2 usage or a fabric that cannot be.
    """
    given = {name: value for name, value in locals().items() if name not in _NOT_FIELDS}
    given["lost"] = ",".join(lost) if lost else None
    from epctl.commands import errors, fabric_output
    from epctl.fabric.report import SCHEMA

    options.choice(format, FORMATS, "--format")
    if model == "list":
        fabric_output.list_models(format, output)
        return
    with errors.told(format, SCHEMA):
        options.choice(show, TABLES, "--show")
        options.emit(_text(given, words or [], topology, what_if, show, format), output)


_NOT_FIELDS = ("words", "topology", "what_if", "show", "format", "output", "lost")


def _text(
    given: dict[str, Any],
    words: list[str],
    topology: list[str] | None,
    what_if: bool,
    show: str,
    format: str,  # noqa: A002
) -> str:
    from epctl.commands import fabric_output
    from epctl.fabric.flags import with_flags
    from epctl.fabric.request import Request

    request = Request(what_if=what_if)
    if topology:
        request = fabric_output.with_topology(request, topology, given)
    if request.graph is None or not request.origin:
        request = with_flags(request, given)
    if format == "html":
        return fabric_output.html(request, words)
    if not words:
        return fabric_output.rendered(fabric_output.report(request), show, format)
    return fabric_output.compared(request, words, format)
