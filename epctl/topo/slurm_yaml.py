"""Slurm's topology.yaml as lines of topology.conf. Only the few forms that this file has are read: lists of maps with scalars."""

from __future__ import annotations

import re
from collections.abc import Iterator

from epctl.core.errors import EpctlError

_ENTRY = re.compile(r"(\s*)(-\s+)?([a-z_]{1,32}):\s*(.*?)\s*\Z", re.ASCII)
_ITEM = re.compile(r"\s*-\s+([0-9]{1,6})\s*\Z", re.ASCII)
_STARTS = {"switch": "SwitchName", "block": "BlockName"}
_MORE = {"children": "Switches", "nodes": "Nodes"}
_FRAMES = {"topology", "cluster_default", "tree", "switches", "blocks", "block_sizes", "flat"}


def lines_of_yaml(text: str, name: str) -> Iterator[tuple[int, str]]:
    """(line number, line of topology.conf). Raises EpctlError for a line that topology.yaml does not have."""
    current, begun, sizes, topologies = "", 0, "", 0
    in_sizes = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].rstrip()
        if not line.strip() or line.strip() == "---":
            continue
        item = _ITEM.fullmatch(line)
        if item is not None and in_sizes:
            sizes += f",{item[1]}"
            continue
        entry = _ENTRY.fullmatch(line)
        if entry is None or not (entry[3] in _STARTS or entry[3] in _MORE or entry[3] in _FRAMES):
            raise EpctlError(f"line {number} of {name} is not understood", line.strip()[:80], _TODO)
        key, value = entry[3], entry[4].strip("\"'")
        topologies += key == "topology"
        in_sizes = key == "block_sizes"
        if in_sizes and value:
            sizes += "," + value.strip("[]").replace(" ", "")
        if key in _STARTS and value:
            if current:
                yield begun, current
            current, begun = f"{_STARTS[key]}={value}", number
        elif key in _MORE:
            current += f" {_MORE[key]}={value}"
        if topologies > 1:
            raise EpctlError(
                f"{name} has several topologies", "one can be drawn at a time", "leave one of them in the file"
            )
    if current:
        yield begun, current
    if sizes:
        yield begun, f"BlockSizes={sizes.strip(',')}"


_TODO = "correct the file; its form is at https://slurm.schedmd.com/topology.yaml.html"
