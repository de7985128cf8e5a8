"""Max-min fair sharing: what rate each flow gets when all run at once, and how much slower that is than NICs alone would allow."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

_SLACK = 1e-12


def rates(paths: Sequence[Sequence[int]], num_links: int) -> list[float]:
    """Max-min fair rates of flows over links of capacity 1; `paths` names each flow's links, at least one.

    Source: progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2): the link with the smallest share left fixes the
    rates of all its flows, again and again. Time: flows x links of a path x log(links).
    """
    members: list[list[int]] = [[] for _ in range(num_links)]
    for flow, path in enumerate(paths):
        for link in path:
            members[link].append(flow)
    left, active = [1.0] * num_links, [len(flows) for flows in members]
    found = [-1.0] * len(paths)
    heap = [(1.0 / count, link) for link, count in enumerate(active) if count]
    heapify(heap)
    while heap:
        share, link = heappop(heap)
        if not active[link]:
            continue
        now = left[link] / active[link]
        if now > share + _SLACK:  # flows that were fixed elsewhere left more behind
            heappush(heap, (now, link))
            continue
        for flow in members[link]:
            if found[flow] < 0.0:
                found[flow] = now
                for other in paths[flow]:
                    left[other] -= now
                    active[other] -= 1
    return found


def slowdowns(paths: Sequence[Sequence[int]], nic_paths: Sequence[Sequence[int]], num_links: int) -> list[float]:
    """By flow: the max-min fair rate that NIC links alone would give it, over the one that it gets; 1 where the fabric costs nothing."""
    ideal, real = rates(nic_paths, num_links), rates(paths, num_links)
    return [a / b for a, b in zip(ideal, real, strict=True)]
