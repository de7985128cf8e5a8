"""The catalogue of checks and profiles, as a list or one by one."""

from __future__ import annotations

from epctl.core.check import AREAS, Check, registered
from epctl.core.errors import EpctlError
from epctl.core.jsontext import dump
from epctl.core.profile import profiles


def listing(format: str) -> str:  # noqa: A002
    """All checks by area, and all profiles."""
    checks = registered().values()
    if format == "json":
        whole = {
            "schema": {"name": "epctl.checks", "version": 1},
            "checks": [_facts(one) for one in checks],
            "profiles": list(profiles().values()),
        }
        return dump(whole).decode()
    lines = [f"{len(checks)} checks"]
    for area, title in AREAS.items():
        mine = [one for one in checks if one.area == area]
        if mine:
            lines += ["", f"{title} ({area})", *(f"  {one.id:26} {one.severity:4}  {one.title}" for one in mine)]
    lines += ["", "Profiles", *(f"  {profile.id:26}       {profile.title}" for profile in profiles().values())]
    return "\n".join(lines) + "\n"


def explanation(id: str, format: str) -> str:  # noqa: A002
    """One check in full. Raises EpctlError for an id that is none."""
    checks = registered()
    if id.upper() not in checks:
        from difflib import get_close_matches

        near = ", ".join(get_close_matches(id.upper(), checks, 3)) or "none"
        raise EpctlError(f"there is no check {id!r}", f"near it: {near}", "see `epctl doctor --list`")
    one = checks[id.upper()]
    if format == "json":
        return dump(_facts(one)).decode()
    import textwrap

    rows = {
        "area": AREAS[one.area],
        "severity": one.severity,
        "needs": ", ".join(need.name for need in one.needs) or "nothing",
        "why": one.why,
        "fix": one.fix,
        **{f"${i}" if i else "$": line for i, line in enumerate(one.commands)},
        "see": one.reference,
    }
    body = (
        textwrap.fill(
            value,
            78,
            initial_indent=f"  {key:9}",
            subsequent_indent=" " * 11,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for key, value in rows.items()
    )
    return "\n".join([f"{one.id}: {one.title}", *body]) + "\n"


def _facts(one: Check) -> dict[str, object]:
    return {
        "id": one.id,
        "area": one.area,
        "severity": one.severity,
        "title": one.title,
        "why": one.why,
        "fix": one.fix,
        "commands": one.commands,
        "reference": one.reference,
        "needs": [need.name for need in one.needs],
    }
