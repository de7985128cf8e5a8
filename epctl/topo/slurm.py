"""Slurm's topology.conf, read and written: `SwitchName=` lines of topology/tree, `BlockName=` lines of topology/block, and the two forms
in topology.yaml. Format: https://slurm.schedmd.com/topology.conf.html and https://slurm.schedmd.com/topology.yaml.html; topograph writes
the same files (https://github.com/NVIDIA/topograph), with the domain's or switch's own name in a comment in front of an entry."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from epctl.core.errors import EpctlError
from epctl.core.hostlist import collapse, hosts
from epctl.topo.slurm_yaml import lines_of_yaml

MOST_BYTES = 8 * 1024 * 1024
MOST_ENTRIES = 100_000
MOST_TIERS = 32
MOST_NAMES = 200_000
"""In one list."""
_PAIR = re.compile(r"([A-Za-z]{1,32})\s{0,4}=\s{0,4}(\S+)", re.ASCII)
_KEYS = {"switchname", "switches", "nodes", "linkspeed", "blockname", "blocksizes"}
_COMMENT = re.compile(r"#\s*(\S{1,200})\s*=\s*(\S{1,200})\s*\Z", re.ASCII)


class Switch(Struct, frozen=True):
    """One switch of the tree: its child switches or its nodes. `alias`: its own name, where a comment tells it."""

    name: str
    switches: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    link_speed: str = ""
    alias: str = ""


class Block(Struct, frozen=True):
    """Nodes that one NVLink domain (or another fast domain) holds."""

    name: str
    nodes: tuple[str, ...] = ()
    alias: str = ""


class Topology(Struct, frozen=True):
    """One file."""

    switches: tuple[Switch, ...] = ()
    blocks: tuple[Block, ...] = ()
    block_sizes: tuple[int, ...] = ()


def looks_like(text: str) -> bool:
    """Is this text a Slurm topology?"""
    return bool(re.search(r"^\s*(?:SwitchName|BlockName|BlockSizes)\s*=", text, re.IGNORECASE | re.MULTILINE)) or bool(
        re.search(r"^\s*-?\s*topology:\s*\S", text, re.MULTILINE)
        and re.search(r"^\s*(?:tree|block|flat):", text, re.MULTILINE)
    )


def parse(text: str, name: str) -> Topology:
    """The topology in `text`. Raises EpctlError, naming `name` and the line, for what Slurm would not take: unknown keys, a switch that is
    there twice or has two parents, a circle, a switch that is nowhere described."""
    if len(text) > MOST_BYTES:
        raise EpctlError(f"{name} is refused", f"it has {len(text):,} characters; up to {MOST_BYTES:,} are read", _TODO)
    yaml = re.search(r"^\s*-?\s*topology:\s*\S", text, re.MULTILINE)
    lines = lines_of_yaml(text, name) if yaml else enumerate(text.splitlines(), 1)
    found = _entries(lines, name)
    _check(found, name)
    return found


def _entries(lines: Iterable[tuple[int, str]], name: str) -> Topology:
    switches: dict[str, Switch] = {}
    blocks: dict[str, Block] = {}
    sizes: tuple[int, ...] = ()
    aliases: dict[str, str] = {}
    for number, line in lines:
        if comment := _COMMENT.match(line.strip()):
            aliases[comment[1]] = comment[2]
        pairs = _pairs(line.partition("#")[0], f"line {number} of {name}")
        if "switchname" in pairs:
            entry = _switch(pairs, aliases, f"line {number} of {name}")
            if switches.setdefault(entry.name, entry) is not entry:
                raise EpctlError(
                    f"line {number} of {name}: switch {entry.name} is there twice", "each has one line", _TODO
                )
        elif "blockname" in pairs:
            block = Block(
                pairs["blockname"], _listed(pairs.get("nodes", ""), name), aliases.get(pairs["blockname"], "")
            )
            if blocks.setdefault(block.name, block) is not block:
                raise EpctlError(
                    f"line {number} of {name}: block {block.name} is there twice", "each has one line", _TODO
                )
        elif "blocksizes" in pairs:
            sizes = _sizes(pairs["blocksizes"], f"line {number} of {name}")
        elif pairs:
            raise EpctlError(f"line {number} of {name} is no entry", line.strip()[:80], _TODO)
        if len(switches) + len(blocks) > MOST_ENTRIES:
            raise EpctlError(f"{name} is refused", f"it has more than {MOST_ENTRIES} entries", _TODO)
    return Topology(tuple(switches.values()), tuple(blocks.values()), sizes)


def _pairs(line: str, where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    rest = line.strip()
    while rest:
        pair = _PAIR.match(rest)
        if pair is None or pair[1].lower() not in _KEYS:
            raise EpctlError(f"{where} is not understood", rest[:80], _TODO)
        if pair[1].lower() in found:
            raise EpctlError(f"{where} has {pair[1]} twice", rest[:80], _TODO)
        found[pair[1].lower()] = pair[2]
        rest = rest[pair.end() :].strip()
    return found


def _switch(pairs: dict[str, str], aliases: dict[str, str], where: str) -> Switch:
    name = pairs["switchname"]
    if "switches" in pairs and "nodes" in pairs:
        raise EpctlError(f"{where}: {name} has switches and nodes", "topology/tree has either below a switch", _TODO)
    return Switch(
        name,
        _listed(pairs.get("switches", ""), where),
        _listed(pairs.get("nodes", ""), where),
        pairs.get("linkspeed", ""),
        aliases.get(name, ""),
    )


def _listed(text: str, where: str) -> tuple[str, ...]:
    """Names in a list of Slurm's; none where there is none."""
    try:
        return hosts(text, MOST_NAMES) if text else ()
    except ValueError as error:
        todo = "write it as Slurm does: tux[0-3,12],login1"
        raise EpctlError(f"{where}: {text[:60]!r} is no host list", str(error), todo) from None


def _sizes(text: str, where: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(re.fullmatch(r"[0-9]{1,6}", word) for word in words):
        raise EpctlError(f"{where}: BlockSizes is no list of numbers", text[:80], _TODO)
    return tuple(int(word) for word in words)


def _check(found: Topology, name: str) -> None:
    by_name = {switch.name: switch for switch in found.switches}
    parent: dict[str, str] = {}
    for switch in found.switches:
        for child in switch.switches:
            if child not in by_name:
                raise EpctlError(
                    f"{name}: switch {child} is nowhere described", f"{switch.name} has it among its switches", _TODO
                )
            if child in parent:
                why = f"{parent[child]} and {switch.name} both have it among their switches; a tree has one way up"
                raise EpctlError(f"{name}: switch {child} has two parents", why, _TODO)
            parent[child] = switch.name
    for start in by_name:
        seen = [start]
        while seen[-1] in parent:
            seen.append(parent[seen[-1]])
            if seen[-1] == start:
                raise EpctlError(f"{name}: its switches make a circle", " < ".join(seen[:8]), _TODO)
            if len(seen) > MOST_TIERS:
                why = f"more than {MOST_TIERS} switches one above the other"
                raise EpctlError(f"{name}: its switches make a circle or no tree of a network", why, _TODO)
    _check_nodes(found, name)


def _check_nodes(found: Topology, name: str) -> None:
    """Each node is below one switch and in one block."""
    for kind, entries in (("switch", found.switches), ("block", found.blocks)):
        homes: dict[str, str] = {}
        for entry in entries:
            for node in entry.nodes:
                if node in homes:
                    why = f"{kind} {homes[node]} and {kind} {entry.name} both have it"
                    raise EpctlError(f"{name}: node {node} is there twice", why, _TODO)
                homes[node] = entry.name


def text(topology: Topology) -> str:
    """topology.conf of a topology: top switches first, or blocks and their sizes."""
    lines = [*_tree_lines(topology), *_block_lines(topology)]
    return "\n".join(lines) + "\n" if lines else ""


def _tree_lines(topology: Topology) -> Iterator[str]:
    children = {child for switch in topology.switches for child in switch.switches}
    first = sorted(topology.switches, key=lambda switch: (switch.name in children, bool(switch.nodes)))
    for switch in first:
        if switch.alias:
            yield f"# {switch.name}={switch.alias}"
        what = f" Switches={collapse(switch.switches)}" if switch.switches else ""
        what += f" Nodes={collapse(switch.nodes)}" if switch.nodes else ""
        speed = f" LinkSpeed={switch.link_speed}" if switch.link_speed else ""
        yield f"SwitchName={switch.name}{what}{speed}"


def _block_lines(topology: Topology) -> Iterator[str]:
    for block in topology.blocks:
        if block.alias:
            yield f"# {block.name}={block.alias}"
        yield f"BlockName={block.name} Nodes={collapse(block.nodes)}"
    if topology.block_sizes:
        yield f"BlockSizes={','.join(map(str, topology.block_sizes))}"


_TODO = "correct the file; its form is at https://slurm.schedmd.com/topology.conf.html"
