"""Traffic formulas against counting: every choice of experts of a small group, followed copy by copy."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest

from epctl.model.gate import expected_distinct
from epctl.model.traffic import Domain, Volumes, combine_volumes, dispatch_volumes, stages

SMALL = [
    (Domain(nodes, gpus, hybrid), topk)
    for nodes, gpus in ((1, 2), (1, 4), (2, 1), (2, 2), (3, 2), (2, 3), (4, 1))
    for hybrid in (False, True)
    for topk in (1, 2, 3)
]


def counted(domain: Domain, topk: int) -> tuple[dict[str, Counter[str]], int]:
    """What moves, by stage, for a token of rank 0 over all sets of top-k experts (two a rank), and the number of copies."""
    moved: dict[str, Counter[str]] = {name: Counter() for name in ("dispatch", "combine", "combine_epilogue")}
    copies = 0
    for picks in itertools.combinations(range(2 * domain.num_ranks), topk):
        ranks = {expert // 2 for expert in picks}
        nodes = {rank // domain.gpus_per_node for rank in ranks}
        copies += len(ranks)
        (_two_level if domain.two_level else _direct)(domain, ranks, nodes, moved)
    return moved, copies


def _two_level(domain: Domain, ranks: set[int], nodes: set[int], moved: dict[str, Counter[str]]) -> None:
    far_nodes = len(nodes - {0})
    pushed = sum(1 for rank in ranks if rank % domain.gpus_per_node)
    # Source: read, fill the send buffer, hand the own node its copy. Forwarder of each node: read, write every copy.
    moved["dispatch"].update(
        sm_read=1 + len(nodes), sm_write=1 + (0 in nodes) + len(ranks), rdma=far_nodes, nvlink=pushed
    )
    # Forwarder: pull every partial row, write a sum a node. Home: read the sums, write the row.
    moved["combine"].update(sm_read=len(ranks) + len(nodes), sm_write=len(nodes) + 1, rdma=far_nodes, nvlink=pushed)
    moved["combine_epilogue"].update(sm_read=len(nodes), sm_write=1)


def _direct(domain: Domain, ranks: set[int], nodes: set[int], moved: dict[str, Counter[str]]) -> None:
    near = sum(1 for rank in ranks if rank < domain.gpus_per_node)
    far, buffered = len(ranks) - near, domain.num_nodes > 1
    pushed = near - (0 in ranks)
    moved["dispatch"].update(sm_read=1, sm_write=near + buffered, rdma=far, nvlink=pushed)
    # Rows that leave by RDMA are copied to a send buffer first; home reads every row and writes the sum.
    moved["combine"].update(sm_read=len(ranks) + far, sm_write=far + 1, rdma=far, nvlink=pushed)
    moved["combine_epilogue"].update(sm_read=len(ranks), sm_write=1)


@pytest.mark.parametrize(("domain", "topk"), SMALL)
def test_formulas_equal_counting(domain: Domain, topk: int) -> None:
    experts = 2 * domain.num_ranks
    moved, copies = counted(domain, topk)
    ranks, nodes = (expected_distinct(experts, groups, topk) for groups in (domain.num_ranks, domain.num_nodes))
    assert copies == ranks * math.comb(experts, topk)

    def expected(stage: str) -> Volumes:
        return Volumes(*(Fraction(moved[stage][name], copies) for name in Volumes._fields))

    one = Fraction(1)
    assert dispatch_volumes(domain, ranks, nodes, one) == expected("dispatch")
    assert combine_volumes(domain, ranks, nodes, one, "write_once") == expected("combine")
    epilogue = stages(domain, float(ranks), float(nodes), "staged")["combine_epilogue"]
    assert math.isclose(epilogue.sm_read, expected("combine_epilogue").sm_read)
    assert math.isclose(epilogue.sm_write, expected("combine_epilogue").sm_write)
