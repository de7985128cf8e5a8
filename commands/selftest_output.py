"""How `epctl selftest` shows its cases: while they end, and the whole report."""

from __future__ import annotations

import csv
import io
import textwrap

from epctl.bench import header
from epctl.bench.selftest import DAMAGE, Checked, Proof, Report, nothing_run
from epctl.bench.together import told
from epctl.core.op import Layout
from epctl.core.render.safe import plain
from epctl.core.wording import counted

WIDTH = 80


def opening(layout: Layout, num_cases: int, seed: int) -> str:
    """The topology, and what follows."""
    top = "\n".join(plain(line) for line in header.lines(layout))
    return f"{top}\n\n{counted(num_cases, 'case')}, seed {seed}; first the checks are proved\n"


def _indented(text: str) -> str:
    return textwrap.fill(plain(text), WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8, break_on_hyphens=False)


def _repeat(command: str) -> str:
    """Whole, however long: it is there to be copied."""
    return f"        repeat: {plain(command)}\n" if command else ""


def proof_line(proof: Proof) -> str:
    """`proved  link: one byte changed on purpose`, and by what it was noticed."""
    what = f"{proof.op}: {DAMAGE[proof.kind]} on purpose"
    if proof.noticed:
        return f"proved  {what}\n{_indented(f'noticed: {proof.message}')}\n"
    blind = f"{proof.message}: what the checks of {proof.op} say means nothing"
    return f"UNPROVED {what}\n{_indented(blind)}\n{_repeat(proof.command)}"


def case_line(case: Checked) -> str:
    """`ok      link bulk-write/…  0.02 s`; a failure with what is wrong, and how to repeat it."""
    if case.ok:
        return f"ok      {case.op} {case.case}  {case.seconds:.2f} s\n"
    return f"FAILED  {case.op} {case.case}\n{_indented(told(case.failures))}\n{_repeat(case.command)}"


def closing(report: Report) -> str:
    """The summary."""
    failed = [case for case in report.cases if not case.ok]
    unproved = [proof for proof in report.proofs if not proof.noticed]
    left = report.num_cases - report.num_left - len(report.cases)
    counts = f"{len(report.cases) - len(failed)} passed, {len(failed)} failed" + (f", {left} not run" if left else "")
    cut_short = not report.complete and not failed and not unproved
    lines = ["", f"{_word(report, cut_short=cut_short)}: {counts}"]
    if report.num_left:
        lines.append(f"{counted(report.num_left, 'case')} left out: the budget was over (--budget)")
    lines += [wrapped for text in header.absences(report.absent) for wrapped in _wrapped(text)]
    if unproved:
        names = ", ".join(dict.fromkeys(proof.op for proof in unproved))
        lines.append(f"UNPROVED: the checks of {names} do not notice what they must, and were not used")
    if not report.complete:
        ended = "the run ended before all cases had"
        lines.append(ended if cut_short else f"INCOMPLETE: {ended}")
    lines += list(report.cautions)
    return "\n".join(lines) + "\n"


def _word(report: Report, *, cut_short: bool) -> str:
    if cut_short:
        return "INCOMPLETE"
    return "PASSED" if report.ok else "NOTHING RUN" if nothing_run(report) else "FAILED"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(plain(text), WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def csv_text(report: Report) -> str:
    """Proofs and cases as CSV below lines with # that tell the topology."""
    stream = io.StringIO()
    for text in header.lines(report.layout):
        stream.write(f"# {plain(text)}\n")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("kind", "op", "case", "ok", "seconds", "message", "command"))
    for proof in report.proofs:
        message = plain(proof.message)
        writer.writerow((f"proof {proof.kind}", proof.op, proof.case, proof.noticed, "", message, proof.command))
    for case in report.cases:
        writer.writerow(("case", case.op, case.case, case.ok, case.seconds, plain(told(case.failures)), case.command))
    return stream.getvalue()


def markdown(report: Report) -> str:
    """Topology, proofs, failures, summary."""
    lines = ["# epctl selftest", "", f"`{plain(report.command)}`, {plain(report.taken_at)}", ""]
    lines += [f"- {_escaped(text)}" for text in header.lines(report.layout)]
    lines += ["", "| | op | case | what was found |", "|---|---|---|---|"]
    for proof in report.proofs:
        word = "proved" if proof.noticed else "UNPROVED"
        lines.append(f"| {word} | {proof.op} | {DAMAGE[proof.kind]} in `{proof.case}` | {_escaped(proof.message)} |")
    for case in report.cases:
        found = "" if case.ok else f"{_escaped(told(case.failures))}; repeat: `{plain(case.command)}`"
        lines.append(f"| {'ok' if case.ok else 'FAILED'} | {case.op} | `{case.case}` | {found} |")
    lines += [*(f"{_escaped(text)}  " if text else "" for text in closing(report).splitlines())]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return plain(text).replace("|", "\\|").replace("<", "&lt;")
