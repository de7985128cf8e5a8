"""Runs the checks over one snapshot and puts findings, ladder and capabilities together. Pure; never raises on a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import Struct

from epctl.core.capability import Capabilities, capabilities
from epctl.core.check import AREAS, RANK, Check, Finding, evaluate
from epctl.core.context import Context
from epctl.core.distributions import deepep
from epctl.core.errors import EpctlError
from epctl.core.fact import Absent, value_or
from epctl.core.glance import at_a_glance
from epctl.core.ladder import Rung, ladder
from epctl.core.profile import Profile, chosen, profiles
from epctl.core.snapshot import Origin, Schema, Snapshot
from epctl.core.verdict import Summary, summarise
from epctl.core.views import versions

T = TypeVar("T")
SCHEMA = Schema("epctl.doctor", 1)
FALLBACK = ("deepep-2.5", "epctl")
"""Profiles when no EP library is installed: what the newest one would ask for, and epctl itself."""


class InForce(Struct, frozen=True):
    """A profile that was used, and why."""

    id: str
    title: str
    because: str


class Report(Struct, frozen=True):
    """What `epctl doctor` says of one node."""

    schema: Schema
    host: str
    source: str
    """live, recorded or sample"""
    origin: Origin
    taken_at: str
    at_a_glance: tuple[str, ...]
    """Machine, GPUs, driver, software in a few lines."""
    profiles: tuple[InForce, ...]
    capabilities: Capabilities
    ladder: tuple[Rung, ...]
    findings: tuple[Finding, ...]
    summary: Summary


def detect(node: Snapshot) -> tuple[tuple[Profile, str], ...]:
    """Profiles that what is installed on the node puts in force, each with the reason; the fallback ones when there is none."""
    from packaging.requirements import Requirement

    listed = {entry.name: entry.version for entry in value_or(node.software.distributions, ())}
    installed = {name: (version, f"{name} {version} is installed") for name, version in listed.items()}
    installed = {**deepep(node), **installed}
    settings = {f"{entry.name}={entry.value}" for entry in value_or(node.env.variables, ())}
    drivers = {value_or(device.driver, "") for device in value_or(node.rdma.devices, ())}
    found: list[tuple[Profile, str]] = []
    for profile in profiles().values():
        rule = profile.detect
        for text in rule.distributions:
            wanted = Requirement(text)
            name = wanted.name.replace("_", "-").lower()
            version, words = installed.get(name, ("", ""))
            parsed = versions.parse(version)
            if parsed and wanted.specifier.contains(parsed, prereleases=True):
                found.append((profile, words))
                break
        else:
            if rule.rdma_driver and rule.rdma_driver in drivers:
                found.append((profile, f"RDMA devices with driver {rule.rdma_driver}"))
            elif set(rule.env) & settings:
                found.append((profile, f"{(set(rule.env) & settings).pop()} is set"))
    if any(profile.detect.distributions for profile, _ in found):
        return tuple(found)
    return (*found, *((profile, "no EP library is installed") for profile in chosen(FALLBACK)))


def select(checks: Iterable[Check], only: tuple[str, ...], skip: tuple[str, ...]) -> tuple[Check, ...]:
    """Checks named by id or area in `only` (all when empty), less those in `skip`. Raises EpctlError for a name that is neither."""
    every = tuple(checks)
    names = {one.id for one in every} | set(AREAS)
    only, skip = (tuple(_spelled(name, names) for name in given) for given in (only, skip))
    for name in (*only, *skip):
        if name not in names:
            near = ", ".join(_near(name, names)) or ", ".join(AREAS)
            raise EpctlError(
                f"{name!r} is neither a check nor an area",
                f"near it: {near}",
                "see `epctl doctor --list` for all ids and areas",
            )
    return tuple(
        one
        for one in every
        if (not only or one.id in only or one.area in only) and one.id not in skip and one.area not in skip
    )


def _spelled(name: str, names: set[str]) -> str:
    """`name` in the case that ids (upper) and areas (lower) have."""
    return next((form for form in (name, name.upper(), name.lower()) if form in names), name)


def _near(name: str, names: set[str]) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(name.upper(), names, 3) or get_close_matches(name.lower(), names, 3)


def examine(node: Snapshot, checks: Iterable[Check], profile_names: tuple[str, ...] = (), num_nodes: int = 1) -> Report:
    """The report on `node`. `profile_names` empty: what is installed decides. Raises EpctlError for an unknown profile."""
    trouble: list[str] = []
    no_rungs: tuple[Rung, ...] = ()
    no_lines: tuple[str, ...] = ()
    fallback = tuple((profile, "what is installed could not be told") for profile in chosen(FALLBACK))
    if profile_names:
        used = tuple((profile, "asked for") for profile in chosen(profile_names))
    else:
        used = _guarded("the detection of profiles", lambda: detect(node), fallback, trouble)
    context = Context(node, tuple(profile for profile, _ in used), num_nodes, bool(profile_names))
    findings = tuple(sorted((evaluate(one, context) for one in checks), key=_rank))
    can = _guarded("the table of links", lambda: capabilities(context), Capabilities((), Absent("failed")), trouble)
    rungs = _guarded("the ladder", lambda: ladder(context), no_rungs, trouble)
    glance = _guarded("the overview", lambda: at_a_glance(node), no_lines, trouble)
    return Report(
        schema=SCHEMA,
        host=value_or(node.host.hostname, "unknown host"),
        source=node.origin.kind,
        origin=node.origin,
        taken_at=node.taken_at,
        at_a_glance=(*glance, *trouble),
        profiles=tuple(InForce(profile.id, profile.title, why) for profile, why in used),
        capabilities=can,
        ladder=rungs,
        findings=findings,
        summary=summarise(findings),
    )


def _guarded(what: str, action: Callable[[], T], otherwise: T, trouble: list[str]) -> T:
    """`action()`; `otherwise` after a bug in it, of which `trouble` then tells."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001 - the doctor never raises
        trouble.append(f"{what} failed ({type(error).__name__}: {str(error)[:200]}); please report this")
        return otherwise


COUNTS = ("fail", "warn", "note", "passed", "unknown", "skipped")
"""Columns of `area_counts`."""


def area_counts(report: Report) -> dict[str, tuple[int, ...]]:
    """Title of each area of which something was looked at → counts in the order of COUNTS."""
    rows: dict[str, tuple[int, ...]] = {}
    for area, title in AREAS.items():
        mine = [finding for finding in report.findings if finding.area == area]
        if any(finding.status != "skipped" for finding in mine):
            wrong = [finding.severity for finding in mine if finding.status == "failed"]
            seen = [finding.status for finding in mine]
            rows[title] = (
                *(wrong.count(severity) for severity in ("fail", "warn", "info")),
                *(seen.count(status) for status in ("passed", "unknown", "skipped")),
            )
    return rows


_STATUS = {"failed": 0, "unknown": 1, "passed": 2, "skipped": 3}


def _rank(finding: Finding) -> tuple[int, int, int, str]:
    areas = list(AREAS)
    return _STATUS[finding.status], RANK[finding.severity], areas.index(finding.area), finding.id
