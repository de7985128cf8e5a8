"""`epctl topo`: what is wired to what, which NIC each GPU should use, and which EP layout that allows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epctl.commands import options

if TYPE_CHECKING:
    from epctl.topo.graph import Graph
    from epctl.topo.report import Report

FORMATS = ("text", "json", "html", "dot", "mermaid", "svg", "slurm", "nccl-xml")

app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    add_completion=False,
)


@app.callback()
def topo(
    context: typer.Context,
    sources: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE|DIR",
            help="Bundle, snapshot, saved topology, NCCL_TOPO_DUMP_FILE (XML), or text of `nvidia-smi topo -m`, ibnetdiscover, Slurm's "
            "topology.conf; may be repeated.",
        ),
    ] = None,
    samples: Annotated[
        list[str] | None,
        typer.Option("--sample", metavar="NAME", help="Use a packaged sample; may be repeated; `list` names them."),
    ] = None,
    ep: Annotated[
        str | None, typer.Option("--ep", metavar="N", help="Which scale-out x scale-up layout N ranks get, and why.")
    ] = None,
    bench: Annotated[
        Path | None,
        typer.Option(
            "--bench",
            metavar="FILE",
            help="Record of `epctl bench link --json FILE`: measured rates beside nominal ones.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="NAME", help="The machine to write, where there are several (nccl-xml)."),
    ] = None,
    format: Annotated[str, typer.Option("--format", help=" | ".join(FORMATS))] = "text",  # noqa: A002
    output: options.Output = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 when sources disagree or a link is slow.")
    ] = False,
    python: options.Python = None,
) -> None:
    """Draw what is wired to what, and pair GPUs with NICs.

    GPUs, NVLinks, PCIe, NICs, ports and switches, and which NIC each GPU should use. Without --from and --sample, of this machine.

    Exit code: 0 fine, 1 the EP size asked for is not possible, 2 usage or bad input, 3 (under --strict) sources disagree or
    NVLink is measured below 70 % of nominal, 4 no source shows a GPU, NIC or switch.
    """
    if context.invoked_subcommand is not None:
        return _nothing_before(context)
    options.choice(format, FORMATS, "--format")
    if samples == ["list"]:
        return options.list_samples(format, output)
    from epctl.commands import errors
    from epctl.topo.graph import SCHEMA
    from epctl.topo.report import report_of

    with errors.told(format, SCHEMA):
        _check(format, host, python, from_files=bool(sources or samples))
        report = report_of(_timed(_graph(sources or [], samples or [], python), bench), _ranks(ep))
        text, notes = _written(report, format, output, host or "")
        options.emit(text, output)
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    raise typer.Exit(_code(report, strict=strict))


def _nothing_before(context: typer.Context) -> None:
    """Options of `epctl topo` itself say nothing to its subcommands: better told than dropped."""
    from epctl.core.errors import EpctlError

    given = [name for name, value in context.params.items() if value and name != "format"]
    if given or context.params.get("format") != "text":
        why = f"`epctl topo {context.invoked_subcommand}` has options of its own"
        todo = f"put options behind the word {context.invoked_subcommand}"
        raise EpctlError(f"options stand in front of {context.invoked_subcommand}", why, todo)


def _check(format: str, host: str | None, python: str | None, *, from_files: bool) -> None:  # noqa: A002
    """Options that would say nothing are told, not dropped."""
    from epctl.core.errors import EpctlError

    if host is not None and format != "nccl-xml":
        why = f"--format {format} shows all machines"
        raise EpctlError("--host is given without --format nccl-xml", why, "add --format nccl-xml, or leave out --host")
    if python is not None and from_files:
        why = "--python is for what is installed on this machine"
        raise EpctlError("--python is given beside --from or --sample", why, "leave out --python")


def _ranks(ep: str | None) -> int | None:
    from epctl.core.errors import EpctlError

    if ep is None:
        return None
    told = ep.strip().removeprefix("-")
    if not (told.isascii() and told.isdigit()) or len(told) > 18:
        raise EpctlError(f"--ep is {ep[:40]!r}", "it takes a number of ranks", "give --ep 8")
    return int(ep)


def _graph(sources: list[Path], samples: list[str], python: str | None) -> Graph:
    from epctl.commands.topo_input import input_of, sample_of
    from epctl.topo.gather import Input, gather

    inputs = [input_of(path) for path in sources] + [sample_of(name) for name in samples]
    if not inputs:
        node = options.snapshot_of(None, None, active=False, python=python)
        inputs = [Input("this machine", node)]
    return gather(inputs)


def _timed(graph: Graph, bench: Path | None) -> Graph:
    if bench is None:
        return graph
    from epctl.commands.topo_bench import run_of
    from epctl.topo.measured import with_run

    return with_run(graph, run_of(bench))


def _written(report: Report, format: str, output: Path | None, host: str) -> tuple[str, list[str]]:  # noqa: A002
    """The text, and notes for standard error."""
    if format == "json":
        from epctl.core.jsontext import dump

        return dump(report).decode(), []
    if format == "text":
        from epctl.commands import topo_output

        return topo_output.text(report, topo_output.look(output)), []
    if format == "html":
        from epctl.commands import topo_output

        return topo_output.html(report), []
    if format == "dot":
        from epctl.topo.show_dot import dot

        return dot(report.graph), []
    if format == "mermaid":
        from epctl.topo.show_mermaid import mermaid

        return mermaid(report.graph), []
    if format == "svg":
        from epctl.topo.show_svg import svg

        return svg(report.graph), []
    return _for_others(report, format, host)


def _for_others(report: Report, format: str, host: str) -> tuple[str, list[str]]:  # noqa: A002
    from epctl.core.errors import EpctlError
    from epctl.topo.report import without_rails
    from epctl.topo.tree import Tree

    tree = Tree(without_rails(report.graph))
    if format == "nccl-xml":
        from epctl.topo.to_nccl_xml import nccl_xml

        return nccl_xml(tree, host)
    from epctl.topo import slurm
    from epctl.topo.from_slurm import topology_of

    topology, notes = topology_of(tree)
    text = slurm.text(topology)
    if not text:
        why = "no source shows a machine"
        raise EpctlError(
            "there is nothing to write for Slurm", why, "give ibnetdiscover's text, or snapshots of several nodes"
        )
    return text, notes


def _code(report: Report, *, strict: bool) -> int:
    from msgspec import UNSET

    if report.domains is not UNSET and not report.domains.possible:
        return 1
    if not any(node.kind in ("gpu", "nic", "switch") for node in report.graph.nodes):
        return 4
    return 3 if strict and any(finding.severity == "warn" for finding in report.graph.findings) else 0


@app.command("vm")
def vm(
    source: Annotated[
        Path, typer.Argument(metavar="HOST_FILE", help="The host's NCCL_TOPO_DUMP_FILE; or its bundle or snapshot.")
    ],
    maps: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="HOST=GUEST", help="PCI addresses, or numa0=numa1; commas or repeated."),
    ] = None,
    map_file: Annotated[
        Path | None, typer.Option("--map-file", metavar="FILE", help="The same, one a line; # starts a comment.")
    ] = None,
    keep_affinity: Annotated[
        bool, typer.Option("--keep-affinity", help="The guest's CPUs are numbered as the host's: keep their masks.")
    ] = False,
    output: options.Output = None,
) -> None:
    """Write the NCCL_TOPO_FILE of a virtual machine.

    It comes out of the topology of its host and the addresses that its GPUs and NICs have inside.

    Exit code: 0 written, 2 usage or bad input.
    """
    from epctl.commands.topo_input import input_of
    from epctl.probes import paths
    from epctl.topo.gather import gather
    from epctl.topo.to_nccl_xml import nccl_xml
    from epctl.topo.tree import Tree
    from epctl.topo.vm import guest_file, mapping_of
    from epctl.topo.xml_tree import Element, parse

    words = list(maps or [])
    if map_file is not None:
        raw = paths.content(map_file, 1 << 20)
        words += [line.partition("#")[0] for line in raw.decode("utf-8", "replace").splitlines()]
    mapping = mapping_of(words)
    given = input_of(source)
    root = given.thing
    if not isinstance(root, Element):
        root = parse(nccl_xml(Tree(gather([given])))[0].encode(), str(source))
    made = guest_file(root, mapping, keep_affinity=keep_affinity)
    options.emit(made.text, output)
    for note in made.notes:
        typer.echo(f"note: {note}", err=True)


@app.command("diff")
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="As for --from; or sample:NAME.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The same.")],
    every: Annotated[bool, typer.Option("--all", help="Also what names a machine: UUIDs, GUIDs, LIDs.")] = False,
    format: Annotated[str, typer.Option("--format", help="text | json")] = "text",  # noqa: A002
    output: options.Output = None,
) -> None:
    """Tell what differs between two topologies. Names do not count where each has one machine.

    Exit code: 0 wired alike, 1 they differ, 2 usage or bad input.
    """
    from epctl.commands import errors, topo_output
    from epctl.commands.topo_input import named
    from epctl.core.jsontext import dump
    from epctl.topo.diff import diff as compare
    from epctl.topo.gather import gather

    options.choice(format, ("text", "json"), "--format")
    schema: dict[str, str | int] = {"name": "epctl.topo.diff", "version": 1}
    with errors.told(format, schema):
        found = compare(gather([named(a)]), gather([named(b)]), (a, b), every=every)
    if format == "json":
        whole = {"schema": schema, "diff": found}
        options.emit(dump(whole).decode(), output)
    else:
        options.emit(topo_output.changes(found, topo_output.look(output)), output)
    raise typer.Exit(1 if found.changes else 0)
