"""`epctl plan`: what to expect of an expert-parallel set-up before anything runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epctl.commands import options, plan_output

if TYPE_CHECKING:
    from epctl.commands.plan_files import Sources
    from epctl.model.plan import PlanReport, Request
    from epctl.model.plan.request import Sweep
    from epctl.model.show.page import Look

FORMATS = ("text", "json", "csv", "markdown", "env")
Text = str | None


def plan(
    experts: Annotated[Text, typer.Option("--experts", metavar="E", help="Routed experts of the model.")] = None,
    topk: Annotated[Text, typer.Option("--topk", metavar="K", help="Experts that a token picks.")] = None,
    hidden: Annotated[Text, typer.Option("--hidden", metavar="H", help="Values of a token (7168).")] = None,
    tokens: Annotated[Text, typer.Option("--tokens", metavar="T", help="Tokens per rank and call (4096).")] = None,
    dtype: Annotated[Text, typer.Option("--dtype", metavar="TYPE", help="fp8 | bf16, of dispatch (fp8).")] = None,
    nodes: Annotated[Text, typer.Option("--nodes", metavar="N", help="Nodes, or NVLink domains (1).")] = None,
    gpus_per_node: Annotated[
        Text, typer.Option("--gpus-per-node", metavar="G", help="GPUs of a node that take part.")
    ] = None,
    mode: Annotated[
        Text, typer.Option("--mode", metavar="MODE", help="auto | direct | hybrid (auto: the faster).")
    ] = None,
    overlap: Annotated[
        bool | None,
        typer.Option("--overlap/--no-overlap", help="Whether GEMMs run at the same time and want SMs (yes)."),
    ] = None,
    multiple_reduction: Annotated[
        bool | None,
        typer.Option("--multiple-reduction/--no-multiple-reduction", help="Whether combine may sum on the way (yes)."),
    ] = None,
    preset: Annotated[
        Text,
        typer.Option(
            "--preset", metavar="NAME", help="decode | prefill: tokens, type and overlap not given otherwise."
        ),
    ] = None,
    gate: Annotated[
        Text,
        typer.Option(
            "--gate",
            metavar="NAME|FILE",
            help="balanced, group_limited_8_top4, zipf:1.0[:shuffled], hot:4:8, or a trace of top-k indices "
            "(.npz, .npy, .pt, .csv).",
        ),
    ] = None,
    seed: Annotated[Text, typer.Option("--seed", metavar="S", help="Of the Monte Carlo for --gate (0).")] = None,
    rules: Annotated[
        Text, typer.Option("--rules", metavar="NAME", help="deepep-2.5 | deepep-2 | epctl: whose constants.")
    ] = None,
    calibration: Annotated[
        Text, typer.Option("--calibration", metavar="FILE", help="Measured rates per SM for the rules epctl (JSON).")
    ] = None,
    sm_read_gbs: Annotated[Text, typer.Option("--sm-read-gbs", metavar="X", help="GB/s that one SM reads.")] = None,
    sm_write_gbs: Annotated[Text, typer.Option("--sm-write-gbs", metavar="X", help="GB/s that one SM writes.")] = None,
    hardware: Annotated[
        Text, typer.Option("--hardware", metavar="NAME", help="Profile of the node (h200-ndr400); `list` names them.")
    ] = None,
    from_: Annotated[
        Text, typer.Option("--from", metavar="FILE|DIR", help="Node out of a bundle, a snapshot or raw tool outputs.")
    ] = None,
    sample: options.Sample = None,
    nvlink_gbs: Annotated[
        Text,
        typer.Option(
            "--nvlink-gbs", metavar="X", help="NVLink per GPU, one way, as the rules use it (0.9 of nominal)."
        ),
    ] = None,
    rdma_gbs: Annotated[Text, typer.Option("--rdma-gbs", metavar="Y", help="RDMA per GPU, one way; 0: none.")] = None,
    sms_on_device: Annotated[Text, typer.Option("--sms-on-device", metavar="M", help="SMs of a GPU.")] = None,
    memory_bytes: Annotated[Text, typer.Option("--memory-bytes", metavar="B", help="Memory of a GPU.")] = None,
    reserved_bytes: Annotated[
        Text,
        typer.Option("--reserved-bytes", metavar="B", help="Of that memory, for weights, caches, activations (0)."),
    ] = None,
    atomics: Annotated[
        Text, typer.Option("--atomics", metavar="KIND", help="fast | slow: RDMA atomics of the adapter.")
    ] = None,
    max_qp: Annotated[Text, typer.Option("--max-qp", metavar="N", help="Queue pairs of one RDMA device.")] = None,
    contexts: Annotated[
        Text,
        typer.Option("--contexts", metavar="N", help="Allocated QPs to each peer, instead of what the rules allocate."),
    ] = None,
    counters: Annotated[
        bool | None, typer.Option("--counters", help="GIN counters are asked for: three times the QPs.")
    ] = None,
    full_mesh: Annotated[
        bool | None, typer.Option("--full-mesh", help="Hybrid mode connects to every rank, as NCCL up to 2.30.4.")
    ] = None,
    what: Annotated[
        Text,
        typer.Option(
            "--what", metavar="FAMILY", help="ep | lb | bucket | engram | pp (ep, with the others beside it)."
        ),
    ] = None,
    op: Annotated[
        Text, typer.Option("--op", metavar="OP", help="bucket: all_reduce | reduce_scatter | all_gather.")
    ] = None,
    tensor_bytes: Annotated[
        Text,
        typer.Option("--tensor-bytes", metavar="B[+B]", help="bucket, pp: sizes of tensors (tokens x hidden BF16)."),
    ] = None,
    inflight: Annotated[Text, typer.Option("--inflight", metavar="N", help="pp: tensors on their way (2).")] = None,
    layers: Annotated[Text, typer.Option("--layers", metavar="N", help="engram: layers (1).")] = None,
    entries: Annotated[
        Text, typer.Option("--entries", metavar="N[+N]", help="engram: entries of a rank, for each layer (100000).")
    ] = None,
    entries_per_token: Annotated[
        Text, typer.Option("--entries-per-token", metavar="N", help="engram: entries that a token fetches (8).")
    ] = None,
    max_reads_per_qp: Annotated[
        Text, typer.Option("--max-reads-per-qp", metavar="N", help="engram: reads that a QP keeps in flight (16).")
    ] = None,
    cp: Annotated[
        Text, typer.Option("--cp", metavar="N", help="DeepInfer: ranks that share a request's context (1).")
    ] = None,
    redundant_experts: Annotated[
        Text, typer.Option("--redundant-experts", metavar="N", help="DeepInfer: at least so many copies of experts.")
    ] = None,
    steps_per_second: Annotated[
        Text, typer.Option("--steps-per-second", metavar="X", help="DeepInfer: decode steps; gives tokens/s/GPU.")
    ] = None,
    requests: Annotated[
        Text, typer.Option("--requests", metavar="N", help="… requests in flight a group (64).")
    ] = None,
    draft_length: Annotated[
        Text, typer.Option("--draft-length", metavar="N", help="… draft tokens a step (0).")
    ] = None,
    acceptance: Annotated[
        Text, typer.Option("--acceptance", metavar="X", help="… share of them accepted (all).")
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option("--sweep", metavar="KEY=a,b,c", help="Go through values of any flag above; may be repeated."),
    ] = None,
    against: Annotated[
        Text, typer.Option("--against", metavar="deep_ep", help="Ask an installed DeepEP 2.5 on this node's GPUs, too.")
    ] = None,
    python: options.Python = None,
    format: Annotated[str, typer.Option("--format", help=" | ".join(FORMATS))] = "text",  # noqa: A002
    output: options.Output = None,
) -> None:
    """Say what to expect before anything runs, and what binds.

    SMs, QPs, buffers, mode, time and bandwidth.

    Exit code: 0 it fits, 1 a budget does not hold it (the nearest plan that fits is named), 2 usage or a set-up that cannot be.
    """
    given = {name: value for name, value in locals().items() if name not in _NOT_ASKED}
    options.choice(format, FORMATS, "--format")
    if "list" in (sample, hardware):
        listing = options.list_samples if sample == "list" else plan_output.list_hardware
        return listing(format, output)
    with plan_output.errors_told(format):
        text, ending = _planned(given, sweep or [], against, python, format, output)
    options.emit(text, output)
    return ending()


def _planned(
    given: dict[str, Any],
    sweep: list[str],
    against: str | None,
    python: str | None,
    format: str,  # noqa: A002
    output: Path | None,
) -> tuple[str, Callable[[], None]]:
    """What is printed, and how the command ends after that."""
    from epctl.commands.plan_files import load
    from epctl.model.plan.request import request_of, sweep_of

    request, series = request_of(given), sweep_of(sweep)
    if against is not None:
        options.choice(against, ("deep_ep",), "--against")
    sources = load(request, series)
    if series.fields or format == "csv":
        return _rows(request, series, sources, format, output)
    report = _report(request, sources, against, python)
    return _rendered(report, format, output), lambda: _end(report)


_NOT_ASKED = ("sweep", "against", "python", "format", "output")
"""Options that say nothing about the plan itself."""


def _report(request: Request, sources: Sources, against: str | None, python: str | None) -> PlanReport:
    from epctl import __version__
    from epctl.model.plan import plan as planned

    report = planned(request, sources.files, version=__version__, sample=sources.sample)
    if against is None:
        return report
    from epctl.commands.plan_files import answers

    return answers(report, python)


def _rendered(report: PlanReport, format: str, output: Path | None) -> str:  # noqa: A002
    if format == "json":
        from epctl.core.jsontext import dump

        return dump(report).decode()
    if format == "text":
        from epctl.model.show import text

        return text.render(report, _look(output))
    if format == "markdown":
        from epctl.model.show import markdown

        return markdown.render(report)
    from epctl.model.show import env

    return env.render(report)


def _look(output: Path | None) -> Look:
    """80 columns in a file or pipe, or as COLUMNS says; colours on a terminal where NO_COLOR is not set."""
    import os
    import shutil

    from epctl.model.show.page import Look

    terminal = output is None and sys.stdout.isatty()
    asked = os.environ.get("COLUMNS", "")
    wide = shutil.get_terminal_size().columns if terminal or (asked.isascii() and asked.isdigit()) else 80
    return Look(min(max(wide, 60), 200), terminal and not os.environ.get("NO_COLOR"))


def _end(report: PlanReport) -> None:
    """Ends with the code that the plan asks for; a number of GPUs that the kernels do not take is bad input."""
    from msgspec import UNSET, UnsetType

    from epctl.model.plan.chosen import group_refusal
    from epctl.model.plan.types import EpFamily

    refusal = group_refusal(report.ep) if isinstance(report.ep, EpFamily) else None
    if refusal is not None:
        near = report.ep.nearest if isinstance(report.ep, EpFamily) else UNSET
        if not isinstance(near, UnsetType) and "mode" not in {change.name for change in near.changes}:
            refusal.todo = f"give --nodes {near.num_nodes}"
        raise refusal
    raise typer.Exit(0 if report.fits else 1)


def _rows(
    request: Request,
    series: Sweep,
    sources: Sources,
    format: str,  # noqa: A002
    output: Path | None,
) -> tuple[str, Callable[[], None]]:
    import gc

    from epctl.model.plan.sweep import rows
    from epctl.model.refusal import RefusalError

    if format == "env":
        why = "settings are for one plan"
        raise RefusalError("value_invalid", "--sweep is given with --format env", why, "give --format csv")
    # Rows hold no cycles; looking for some takes a third of a large sweep.
    collecting = gc.isenabled()
    gc.disable()
    try:
        found = list(rows(request, series, sources.files))
        text = _table(found, format, output)
    finally:
        if collecting:
            gc.enable()
    if all(row.plan.status == "error" for row in found):
        first: Any = found[0].plan
        raise RefusalError(first.error_code, first.what, first.why, first.todo)
    code = 0 if series.fields or getattr(found[0].plan, "fits", True) else 1
    return text, lambda: _exit(code)


def _exit(code: int) -> None:
    raise typer.Exit(code)


def _table(found: list[Any], format: str, output: Path | None) -> str:  # noqa: A002
    from epctl import __version__
    from epctl.model.show import table

    if format == "csv":
        return table.csv_text(found)
    if format == "json":
        return table.json_text(found, __version__)
    return table.markdown(found) if format == "markdown" else table.text(found, _look(output))
