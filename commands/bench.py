"""`epctl bench`: how fast links and kernels are, beside what the plan says and what the link can do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from epctl.commands import options

if TYPE_CHECKING:
    from epctl.bench.collect import Seen
    from epctl.bench.job import Job
    from epctl.bench.record import Record
    from epctl.core.errors import EpctlError
    from epctl.core.placement import Job as Placing

FORMATS = ("text", "json", "csv", "markdown")
MODES = ("all", "low-latency", "high-throughput")
DEVICES = ("gpu", "cpu")
MAX_BUDGET_S = 3600.0
EP_OPTIONS = ("tokens", "experts", "topk", "hidden", "dtype", "expand", "against", "gate", "waits", "overlap")
Words = list[str] | None
Text = str | None


def bench(
    op: Annotated[Words, typer.Option("--op", metavar="OP", help="Ops (all); may be repeated, or a,b.")] = None,
    case: Annotated[Words, typer.Option("--case", metavar="CASE", help="Cases by name, or a pattern with *.")] = None,
    mode: Annotated[str, typer.Option("--mode", help=" | ".join(MODES))] = "all",
    ranks: Annotated[int | None, typer.Option("--ranks", metavar="N", help="Ranks to start here (one a GPU).")] = None,
    emulate_nodes: Annotated[
        int | None,
        typer.Option("--emulate-nodes", metavar="M", help="Play M nodes on this host; every output says EMULATED."),
    ] = None,
    sms: Annotated[Words, typer.Option("--sms", metavar="N,M", help="Numbers of SMs to run on.")] = None,
    size: Annotated[
        Words, typer.Option("--sizes", metavar="64K,16M", help="Bytes of a transfer; K, M and G are powers of 1024.")
    ] = None,
    tokens: Annotated[
        Text, typer.Option("--tokens", metavar="T,U", help="ep: tokens of a rank (128,4096,8192).")
    ] = None,
    experts: Annotated[Text, typer.Option("--experts", metavar="E", help="ep: experts of all ranks (256).")] = None,
    topk: Annotated[Text, typer.Option("--topk", metavar="K", help="ep: experts of a token (8).")] = None,
    hidden: Annotated[Text, typer.Option("--hidden", metavar="H", help="ep: values of a token (7168).")] = None,
    dtype: Annotated[Text, typer.Option("--dtype", metavar="fp8,bf16", help="ep: types of dispatch (both).")] = None,
    expand: Annotated[bool, typer.Option("--expand", help="ep: a row for each expert, in groups of 128.")] = False,
    against: Annotated[
        Text, typer.Option("--against", metavar="RIVALS", help="ep: time nccl,torch,deep-ep on the same data, too.")
    ] = None,
    gate: Annotated[
        Text,
        typer.Option("--gate", metavar="GATE", help="ep: balanced | skew:1.5 | trace:FILE: what tokens select."),
    ] = None,
    waits: Annotated[bool, typer.Option("--waits", help="ep: how long each rank waits for each other.")] = False,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="ep: a matrix product beside the call, and how much it hides.")
    ] = False,
    samples: Annotated[
        int, typer.Option("--samples", metavar="N", help="Samples of each case (0: until the median is known to 1 %).")
    ] = 0,
    budget: Annotated[float, typer.Option("--budget", metavar="S", help="Seconds of sampling a case.")] = 2.0,
    device: Annotated[str, typer.Option("--device", help="gpu | cpu: cpu shows that ops work, and no speed.")] = "gpu",
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the record there, too.")] = None,
    calibration: Annotated[
        Path | None,
        typer.Option("--calibration", metavar="FILE", help="Write rates per SM for `epctl plan --calibration`."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 3 when there are warnings.")] = False,
    format: Annotated[str, typer.Option("--format", help=" | ".join(FORMATS))] = "text",  # noqa: A002
    output: options.Output = None,
) -> None:
    """Measure each case, once it agrees with its reference.

    Each sample begins with a cold L2 cache, after a barrier.

    Where its reader is gone (a closed pipe) and no file gets the record, the run ends at the next result.

    Options that say "ep:" choose the op ep where no --op is given. Starts one rank for each GPU here, or runs as a rank under torchrun,
    srun or mpirun. Exit code: 0 all was measured, 1 a case gave a wrong result or could not run, 2 usage, 3 warnings under --strict, 4 it
    could not be measured.
    """
    given = dict(locals())
    from epctl.bench import devices
    from epctl.bench.calibration import of_record
    from epctl.bench.job import Job
    from epctl.bench.record import SCHEMA
    from epctl.bench.statistics import Rule
    from epctl.commands import errors, running
    from epctl.core.jsontext import dump
    from epctl.core.op import Request

    options.choice(format, FORMATS, "--format")
    with errors.told(format, SCHEMA):
        options.choice(device, DEVICES, "--device")
        options.choice(mode, MODES, "--mode")
        _limits(samples, budget)
        more = running.options_of("ep", {name: value for name, value in given.items() if name in EP_OPTIONS})
        names = running.ops_with(running.known_ops(op), "ep", more)
        wanted = cast("Literal['all', 'low-latency', 'high-throughput']", mode)
        request = Request(wanted, running.sizes(size), running.counts(sms, "--sms"), more)
        num_gpus = devices.required(devices.visible(), "epctl bench") if device == "gpu" else 0
        place = running.placing(ranks, emulate_nodes, num_gpus)
        if running.renders(place):
            running.writable({"--json": json, "--calibration": calibration, "--output": output})
    job = Job(
        tier=cast("Literal['gpu', 'cpu']", device),
        ops=names,
        cases=running.words(case),
        request=request,
        rule=Rule(budget_s=budget, num_samples=samples),
        emulate_nodes=emulate_nodes,
        ranks=running.spawned_ranks(place),
    )
    recorded = json is not None or calibration is not None
    record, code, error = _run(job, place, format, output, recorded=recorded)
    if record is None:
        raise typer.Exit(code)
    if json is not None:
        options.emit(dump(record).decode(), json)
    if error is not None:
        raise error
    if calibration is not None:
        options.emit(dump(of_record(record)).decode(), calibration)
    raise typer.Exit(code or _verdict(record, names, strict=strict))


def _limits(samples: int, budget: float) -> None:
    from epctl.core.errors import EpctlError

    if not 0 <= samples <= 100_000:
        raise EpctlError(f"--samples {samples} is out of range", "it may be 0 to 100000", "give a number in that range")
    if not 0 < budget <= MAX_BUDGET_S:
        raise EpctlError(
            f"--budget {budget:g} is out of range",
            f"it may be above 0 and up to {MAX_BUDGET_S:g} s",
            "give seconds a case: --budget 2",
        )


def _run(
    job: Job,
    place: Placing,
    format: str,  # noqa: A002
    output: Path | None,
    *,
    recorded: bool,
) -> tuple[Record | None, int, EpctlError | None]:
    """The record, None in a process that does not render and where nobody reads any more; the exit code of the ranks; the error that
    ended them early. Raises the error when it came before anything else. `recorded`: a file gets the record."""
    from epctl.bench.collect import Collector
    from epctl.bench.job import BENCH_TASK, HEADER, ROW
    from epctl.bench.record import SCHEMA
    from epctl.commands import bench_output, errors, running
    from epctl.core.errors import EpctlError

    live = running.Live(format, output, wanted_elsewhere=recorded)
    with running.bar(shown=format != "text" or output is not None) as step:

        def news(seen: Seen, kind: str) -> None:
            if kind == HEADER and seen.layout is not None:
                live.say(bench_output.opening(seen.layout, seen.num_cases))
            elif kind == ROW:
                live.say(bench_output.heading(seen.rows) + bench_output.line(seen.rows[-1]))
                step(len(seen.rows), seen.num_cases, seen.rows[-1].case)

        collector = Collector(news)
        error: EpctlError | None = None
        code, ended_by = 0, "a signal"
        try:
            code = running.run(BENCH_TASK, job, place, collector)
            ended_by = ""
        except running.NobodyReadsError:
            code, ended_by = _so_far(collector.seen), "nobody read its output any more"
        except EpctlError as caught:
            ended_by = f"{caught.what}: {caught.why}"
            code, error = (_so_far(collector.seen), None) if live.gone else (0, caught)
        finally:
            record = collector.record(job, running.command_line(), ended_by)
            if record is not None:
                live.end(bench_output.closing(record), _rendered(record, format))
    if live.gone:
        return None, code, None
    if error is not None and record is None:
        with errors.told(format if running.renders(place) else "text", SCHEMA):
            raise error
    return record, code, error


def _so_far(seen: Seen) -> int:
    """Exit code of a run that was ended because nobody reads it."""
    return int(any(not row.ok for row in seen.rows))


def _rendered(record: Record, format: str) -> str | None:  # noqa: A002
    """None for text, which is there already."""
    from epctl.commands import bench_output
    from epctl.core.jsontext import dump

    if format == "json":
        return dump(record).decode()
    if format == "csv":
        return bench_output.csv_text(record)
    return bench_output.markdown(record) if format == "markdown" else None


def _verdict(record: Record, ops: tuple[str, ...], *, strict: bool) -> int:
    from epctl.commands import running

    if not record.complete or any(not row.ok for row in record.rows):
        return 1
    if running.left_out(record.absent, ops):
        return 4
    warned = bool(record.warnings) or any(row.verdict.warns for row in record.rows)
    return 3 if strict and warned else 0
