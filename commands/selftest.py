"""`epctl selftest`: whether the ops give the right bytes here, by checks that were proved first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from epctl.commands import options

if TYPE_CHECKING:
    from epctl.bench.collect import Seen
    from epctl.bench.job import Job
    from epctl.bench.selftest import Report
    from epctl.core.placement import Job as Placing

FORMATS = ("text", "json", "csv", "markdown")
TIERS = ("auto", "gpu", "cpu")
MAX_SEED = 2**31 - 1
NUM_STRESS = 1000
STRESS_BUDGET_S = 300.0
MAX_BUDGET_S = 86_400.0
Words = list[str] | None


def selftest(
    op: Annotated[Words, typer.Option("--op", metavar="OP", help="Ops (all); may be repeated, or a,b.")] = None,
    case: Annotated[Words, typer.Option("--case", metavar="CASE", help="Cases by name, or a pattern with *.")] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="Of all data.")] = 0,
    tier: Annotated[
        str, typer.Option("--tier", help="auto | gpu | cpu: auto is the CPU where no GPU can be used, and says so.")
    ] = "auto",
    ranks: Annotated[int | None, typer.Option("--ranks", metavar="N", help="Ranks to start here (one a GPU).")] = None,
    emulate_nodes: Annotated[
        int | None,
        typer.Option("--emulate-nodes", metavar="M", help="Play M nodes on this host; every output says EMULATED."),
    ] = None,
    stress: Annotated[
        bool, typer.Option("--stress", help="1,000 random shapes, drawn by the seed, instead of the sweep.")
    ] = False,
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="S", help="Begin no case after S seconds (--stress: 300).")
    ] = None,
    format: Annotated[str, typer.Option("--format", help=" | ".join(FORMATS))] = "text",  # noqa: A002
    output: options.Output = None,
) -> None:
    """Compare every op with its reference, bit by bit.

    First the checks are shown to notice a wrong byte and a lost signal. Each failure comes with one command that repeats it. Where its
    reader is gone (a closed pipe), the run ends at the next result. Exit code: 0 all is right, 1 something is not or the checks proved
    blind, 2 usage, 4 it could not be run.
    """
    from epctl.bench.job import Job
    from epctl.bench.selftest import SCHEMA, nothing_run
    from epctl.commands import errors, running
    from epctl.core.errors import EpctlError

    options.choice(format, FORMATS, "--format")
    with errors.told(format, SCHEMA):
        options.choice(tier, TIERS, "--tier")
        if not 0 <= seed <= MAX_SEED:
            raise EpctlError(
                f"--seed {seed} is out of range", f"it may be 0 to {MAX_SEED}", "give a number in that range"
            )
        budget_s = _budget(budget, stress=stress)
        names = running.known_ops(op)
        chosen, num_gpus, notice = _tier(tier)
        place = running.placing(ranks, emulate_nodes, num_gpus)
        if running.renders(place):
            if notice:
                typer.echo(f"note: {notice}", err=True)
            running.writable({"--output": output})
    job = Job(
        tier=cast("Literal['gpu', 'cpu']", chosen),
        ops=names,
        cases=running.words(case),
        seed=seed,
        emulate_nodes=emulate_nodes,
        ranks=running.spawned_ranks(place),
        num_stress=NUM_STRESS if stress else 0,
        budget_s=budget_s,
    )
    report, code = _run(job, place, format, output)
    if report is None or code:
        raise typer.Exit(code)
    if nothing_run(report):
        raise typer.Exit(4)
    raise typer.Exit((4 if running.left_out(report.absent, names) else 0) if report.ok else 1)


def _budget(given: float | None, *, stress: bool) -> float:
    """Seconds; 0 without a limit. Raises EpctlError."""
    from epctl.core.errors import EpctlError

    if given is None:
        return STRESS_BUDGET_S if stress else 0.0
    if not 0 < given <= MAX_BUDGET_S:
        raise EpctlError(
            f"--budget {given:g} is out of range", f"it may be up to {MAX_BUDGET_S:g} s", "give --budget 300"
        )
    return given


def _tier(asked: str) -> tuple[str, int, str]:
    """(tier, GPUs, what to tell). Without a GPU the CPU stands in, which is told."""
    from epctl.bench import devices

    if asked == "cpu":
        return "cpu", 0, ""
    found = devices.visible()
    if asked == "gpu":
        return "gpu", devices.required(found, "epctl selftest --tier gpu", "--tier cpu"), ""
    if found.num_gpus:
        return "gpu", found.num_gpus, ""
    return "cpu", 0, f"no GPU can be used here ({found.missing}): the CPU tier runs, and no kernel"


def _run(job: Job, place: Placing, format: str, output: Path | None) -> tuple[Report | None, int]:  # noqa: A002
    """The report, None in a process that does not render and where nobody reads any more, and the exit code of the ranks."""
    from epctl.bench.collect import Collector
    from epctl.bench.job import CASE, HEADER, PROOF, SELFTEST_TASK
    from epctl.bench.selftest import SCHEMA
    from epctl.commands import errors, running, selftest_output
    from epctl.core.errors import EpctlError

    live = running.Live(format, output)
    with running.bar(shown=format != "text" or output is not None) as step:

        def news(seen: Seen, kind: str) -> None:
            if kind == HEADER and seen.layout is not None:
                live.say(selftest_output.opening(seen.layout, seen.num_cases, job.seed))
            elif kind == PROOF:
                live.say(selftest_output.proof_line(seen.proofs[-1]))
            elif kind == CASE:
                live.say(selftest_output.case_line(seen.cases[-1]))
                step(len(seen.cases), seen.num_cases, seen.cases[-1].case)

        collector = Collector(news)
        error: EpctlError | None = None
        code, ended_by = 0, "a signal"
        try:
            code = running.run(SELFTEST_TASK, job, place, collector)
            ended_by = ""
        except running.NobodyReadsError:
            code, ended_by = _so_far(collector.seen), "nobody read its output any more"
        except EpctlError as caught:
            ended_by = f"{caught.what}: {caught.why}"
            code, error = (_so_far(collector.seen), None) if live.gone else (0, caught)
        finally:
            report = collector.report(job, running.command_line(), ended_by)
            if report is not None:
                live.end(selftest_output.closing(report), _rendered(report, format))
    if live.gone:
        return None, code
    if error is not None:
        with errors.told(format if report is None and running.renders(place) else "text", SCHEMA):
            raise error
    return report, code


def _so_far(seen: Seen) -> int:
    """Exit code of a run that was ended because nobody reads it."""
    return int(not all(proof.noticed for proof in seen.proofs) or not all(case.ok for case in seen.cases))


def _rendered(report: Report, format: str) -> str | None:  # noqa: A002
    """None for text, which is there already."""
    from epctl.commands import selftest_output
    from epctl.core.jsontext import dump

    if format == "json":
        return dump(report).decode()
    if format == "csv":
        return selftest_output.csv_text(report)
    return selftest_output.markdown(report) if format == "markdown" else None
