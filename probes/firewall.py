"""What happens to incoming packets that no rule of the host's firewall names."""

from __future__ import annotations

import re
from typing import Literal

from epctl.core.fact import Absent, Fact
from epctl.probes.source import Output, Source

Policy = Literal["none", "accept", "drop"]

_TIMEOUT_S = 2.0
_TABLE = re.compile(r"\s*table (\S+) (\S+) \{")
_CHAIN = re.compile(r"\s*chain (\S+) \{")
_HOOK = re.compile(r"type filter hook input\b[^;]*;(?:.*\bpolicy (accept|drop);)?")
_DENIED = re.compile(r"not permitted|permission denied|must be root|are you root", re.I)
_REJECTS = re.compile(r"\s*(?:reject\b.*|drop)\s*")


def policy(source: Source) -> tuple[Fact[Policy], tuple[str, ...]]:
    """`drop` when an input hook drops or rejects by default, `accept` when there are hooks and none does, `none` without any;
    and remarks. nftables first, which shows the rules of iptables-nft, too."""
    output = source.run("nft", "list", "chains", timeout_s=_TIMEOUT_S)
    if isinstance(output, Absent):
        return _iptables(source, output)
    failure = _failure(output, "nft")
    if failure is not None:
        return failure, ()
    hooks = _hooks(output.stdout.decode("utf-8", "replace"))
    for family, table, chain, word in hooks:
        if word == "drop":
            return "drop", (f"firewall: chain {chain} of table {family} {table} drops by default",)
    for family, table, chain, _ in hooks:
        # firewalld accepts by policy and rejects in the last rule of its chain.
        if table == "firewalld" and _rejects(source, family, table, chain):
            return "drop", (f"firewall: the last rule of {chain} of firewalld rejects",)
    return ("accept" if hooks else "none"), ()


def _hooks(text: str) -> list[tuple[str, str, str, str]]:
    """(family, table, chain, policy) of every input hook of type filter."""
    found: list[tuple[str, str, str, str]] = []
    family = table = chain = ""
    for line in text.splitlines():
        if entry := _TABLE.match(line):
            family, table = entry.groups()
        elif entry := _CHAIN.match(line):
            chain = entry.group(1)
        elif entry := _HOOK.search(line):
            found.append((family, table, chain, entry.group(1) or "accept"))
    return found


def _rejects(source: Source, family: str, table: str, chain: str) -> bool:
    output = source.run("nft", "list", "chain", family, table, chain, timeout_s=_TIMEOUT_S)
    if isinstance(output, Absent):
        return False
    lines = [line for line in output.stdout.decode("utf-8", "replace").splitlines() if line.strip(" \t}")]
    return bool(lines) and _REJECTS.fullmatch(lines[-1]) is not None


def _iptables(source: Source, without: Absent) -> tuple[Fact[Policy], tuple[str, ...]]:
    output = source.run("iptables", "-S", "INPUT", timeout_s=_TIMEOUT_S)
    if isinstance(output, Absent):
        return without, ()
    failure = _failure(output, "iptables")
    if failure is not None:
        return failure, ()
    lines = output.stdout.decode("utf-8", "replace").splitlines()
    if "-P INPUT DROP" in lines:
        return "drop", ("firewall: iptables drops by default",)
    if lines and re.fullmatch(r"-A INPUT -j (?:REJECT.*|DROP)", lines[-1].strip()):
        return "drop", ("firewall: the last rule of iptables refuses the rest",)
    if "-P INPUT ACCEPT" not in lines:
        return Absent("unparsable", "iptables shows no policy", lines[0][:80] if lines else ""), ()
    return ("accept" if len(lines) > 1 else "none"), ()


def _failure(output: Output, tool: str) -> Absent | None:
    if output.code == 0:
        return None
    said = output.stderr.decode("utf-8", "replace").strip()
    first = said.partition("\n")[0][:200]
    return Absent("permission" if _DENIED.search(said) else "failed", f"{tool} could not list its rules", first)
