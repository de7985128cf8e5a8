"""What is broken in a fabric: the same fabric without it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from epctl.model.refusal import RefusalError

if TYPE_CHECKING:
    from epctl.fabric.topology import Fabric

_NIC = re.compile(r"nic(\d{1,9})(?:\.(\d{1,3}))?")


def without(fabric: Fabric, lost: tuple[str, ...]) -> Fabric:
    """`fabric` without leaves, spines, lanes and NIC ports: leaf3, spine1, leaf0-spine1, leaf0-spine1.0, nic5, nic5.1 (of plane 1).
    Raises RefusalError topology_invalid for what the fabric does not have."""
    if not lost:
        return fabric
    ports, groups = [list(plane) for plane in fabric.leaf_of], [list(group) for group in fabric.uplinks]
    leaves = {name: i for i, name in enumerate(fabric.leaf_names)}
    spines = {name: i for i, name in enumerate(fabric.spine_names)}
    for name in lost:
        nic = _NIC.fullmatch(name)
        if nic is not None:
            _lose_nic(ports, int(nic[1]), nic[2], name)
        elif name in leaves:
            ports = [[-1 if leaf == leaves[name] else leaf for leaf in plane] for plane in ports]
            groups[leaves[name]] = []
        elif name in spines:
            groups = [[link for link in group if link[0] != spines[name]] for group in groups]
        else:
            _lose_lanes(groups, leaves, spines, name)
    told = (*fabric.lost, *lost)
    return msgspec.structs.replace(
        fabric, leaf_of=tuple(map(tuple, ports)), uplinks=tuple(map(tuple, groups)), lost=told
    )


def _lose_nic(ports: list[list[int]], gpu: int, plane: str | None, name: str) -> None:
    planes = range(len(ports)) if plane is None else [int(plane)]
    for i in planes:
        if i >= len(ports) or gpu >= len(ports[0]):
            raise _unknown(name)
        ports[i][gpu] = -1


def _lose_lanes(groups: list[list[tuple[int, int]]], leaves: dict[str, int], spines: dict[str, int], name: str) -> None:
    for leaf, i in leaves.items():
        rest = name.removeprefix(f"{leaf}-")
        if rest == name:
            continue
        for spine, j in spines.items():
            gone = [link for link in groups[i] if link[0] == j and rest in (spine, f"{spine}.{link[1]}")]
            if gone:
                groups[i] = [link for link in groups[i] if link not in gone]
                return
    raise _unknown(name)


def _unknown(name: str) -> RefusalError:
    why = "the fabric has no such part, or it is lost already; parts are leaf0, spine0, leaf0-spine1, leaf0-spine1.0, nic5, nic5.1"
    return RefusalError("topology_invalid", f"--lost names {name[:60]!r}", why, "give --lost leaf0-spine1.0")
