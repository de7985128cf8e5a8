"""The catalogue of checks and profiles, as a list or one by one."""

from __future__ import annotations

import msgspec

from epctl.core.check import AREAS, Check, registered
from epctl.core.errors import EpctlError
from epctl.core.jsontext import dump
from epctl.core.profile import Profile, profiles


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
    """One check or one profile in full. Raises EpctlError for an id that is neither."""
    checks, consumers = registered(), profiles()
    if id.lower() in consumers:
        return _profile(consumers[id.lower()], format)
    if id.upper() not in checks:
        from difflib import get_close_matches

        near = (
            ", ".join(get_close_matches(id.upper(), checks, 3) or get_close_matches(id.lower(), consumers, 3)) or "none"
        )
        raise EpctlError(f"there is no check or profile {id!r}", f"near it: {near}", "see `epctl doctor --list`")
    one = checks[id.upper()]
    if format == "json":
        return dump({"schema": {"name": "epctl.check", "version": 1}, **_facts(one)}).decode()
    rows = {
        "area": AREAS[one.area],
        "severity": one.severity,
        "needs": ", ".join(need.name for need in one.needs) or "nothing",
        "why": one.why,
        "fix": one.fix,
        "see": one.reference,
    }
    commands = [f"  {'commands' if i == 0 else '':9}{line}" for i, line in enumerate(one.commands)]
    return "\n".join([f"{one.id}: {one.title}", *_rows(rows), *commands]) + "\n"


def _rows(rows: dict[str, str]) -> list[str]:
    import textwrap

    return [
        textwrap.fill(
            value,
            78,
            initial_indent=f"  {key:9}",
            subsequent_indent=" " * 11,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for key, value in rows.items()
        if value
    ]


def _profile(profile: Profile, format: str) -> str:  # noqa: A002
    if format == "json":
        return dump({"schema": {"name": "epctl.profile", "version": 1}, **msgspec.to_builtins(profile)}).decode()
    rows = {
        "floors": ", ".join(f"{name} {floor}" for name, floor in profile.floors.items()),
        "requires": ", ".join(word.replace("_", " ") for word in profile.requires),
        **{f"not {setting}": why for setting, why in profile.forbids.items()},
        **{f"with {setting}": why for setting, why in profile.needs_env.items()},
        "source": profile.source,
    }
    notes = [line for note in profile.notes for line in _rows({"note": note})]
    return "\n".join([f"{profile.id}: {profile.title}", *_rows(rows), *notes]) + "\n"


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
