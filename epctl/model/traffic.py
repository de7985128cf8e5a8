"""What each stage of dispatch and combine moves, in units of one delivered copy of a token, averaged over a balanced group.

One unit is what one destination rank reads out of its staging buffer for one token. A rank that sends T tokens, each to d
distinct ranks on average, moves T x d units a call. The functions take and give floats or exact fractions alike.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, TypeVar

from msgspec import Struct

from epctl.model.refusal import MAX_COUNT, RefusalError
from epctl.model.rules import Layout

Number = TypeVar("Number", float, Fraction)


class Domain(Struct, frozen=True):
    """How ranks are grouped. Physical: nodes (RDMA between them) of GPUs joined by NVLink. Logical: hybrid mode goes node by node
    (scale-out) and fans out inside (scale-up); direct mode sends every copy straight to its rank."""

    num_nodes: int
    gpus_per_node: int
    hybrid: bool

    @property
    def num_ranks(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def scaleout_ranks(self) -> int:
        return self.num_nodes if self.hybrid else 1

    @property
    def scaleup_ranks(self) -> int:
        return self.gpus_per_node if self.hybrid else self.num_ranks

    @property
    def two_level(self) -> bool:
        """Whether the two-level (hybrid) kernels run: they need more than one scale-out rank."""
        return self.hybrid and self.num_nodes > 1


def domain_of(num_nodes: int, gpus_per_node: int, mode: str) -> Domain:
    """The domain of a request; mode is direct or hybrid. Raises RefusalError unknown_mode, no_ranks, absurd_argument.

    Source of the two splits: deepinfer-ep 2.5.0, csrc/kernels/comm/context.cpp, get_physical_domain_size and
    get_logical_domain_size.
    """
    if mode not in ("direct", "hybrid"):
        why = "kernels are direct (a copy goes straight to its rank) or hybrid (by RDMA to a node, then over NVLink)"
        raise RefusalError(
            "unknown_mode",
            f"mode is {mode!r}",
            why,
            "give --mode hybrid",
            deepep_2_5_0="not applicable (a boolean there)",
        )
    if num_nodes < 1 or gpus_per_node < 1:
        what = f"{num_nodes} nodes of {gpus_per_node} GPUs make no rank"
        why = "a group has at least one rank"
        release = "not reachable (a group has at least one rank)"
        raise RefusalError("no_ranks", what, why, "give --nodes 1 --gpus-per-node 8, or more", deepep_2_5_0=release)
    if num_nodes * gpus_per_node > MAX_COUNT:
        what = f"{num_nodes} nodes of {gpus_per_node} GPUs are too many"
        raise RefusalError("absurd_argument", what, f"at most {MAX_COUNT} ranks are planned for", "give --nodes 16")
    return Domain(num_nodes, gpus_per_node, mode == "hybrid")


class Volumes(NamedTuple):
    """What one stage moves per delivered copy: what SMs read from and write to memory (own or, over NVLink, a peer's), and what
    crosses RDMA and NVLink. Fractions where exact arithmetic went in."""

    sm_read: float | Fraction
    sm_write: float | Fraction
    rdma: float | Fraction
    nvlink: float | Fraction


class Traffic(Struct, frozen=True):
    """Volumes as plain floats, as they are shown."""

    sm_read: float
    sm_write: float
    rdma: float
    nvlink: float


def shown(volumes: Volumes) -> Traffic:
    """`volumes` as floats."""
    return Traffic(float(volumes.sm_read), float(volumes.sm_write), float(volumes.rdma), float(volumes.nvlink))


@lru_cache(maxsize=4096, typed=True)
def dispatch_volumes(domain: Domain, distinct_ranks: Number, distinct_nodes: Number, share: Number) -> Volumes:
    """The main kernel of dispatch. `share` is the number 1 in the type to compute with (1.0 or Fraction(1)).

    A token is read once for its d copies. Over several nodes it is also written once to a send buffer that the NIC can reach. Hybrid:
    one copy for each other node by RDMA (the own node's share by SM), and the forwarder there reads and writes every copy.
    Direct: SMs write the copies for the own node; the rest go by RDMA.
    Source: deepinfer-ep 2.5.0, deep_ep/buffers/ep.py, get_theoretical_num_sms; the write-once kernels move the same here.
    """
    per_copy = share / distinct_ranks
    if domain.two_level:
        nodes = share * domain.num_nodes
        per_node = distinct_nodes / distinct_ranks
        return Volumes(
            sm_read=per_copy + per_node,
            sm_write=per_copy + per_node / nodes + 1,
            rdma=per_node * (1 - 1 / nodes),
            nvlink=1 - share / domain.gpus_per_node,
        )
    near = share * domain.gpus_per_node / domain.num_ranks
    return Volumes(
        sm_read=per_copy,
        sm_write=near + per_copy if domain.num_nodes > 1 else near,
        rdma=1 - near,
        nvlink=near * (1 - share / domain.gpus_per_node),
    )


@lru_cache(maxsize=4096, typed=True)
def combine_volumes(
    domain: Domain, distinct_ranks: Number, distinct_nodes: Number, share: Number, layout: Layout
) -> Volumes:
    """The main kernel of combine; the links carry what they carried in dispatch, the other way.

    staged: what dispatch wrote to own memory is read, what it read is written, and NVLink copies are pushed: read = write_d - nvlink,
    write = read_d + nvlink. Source: deepinfer-ep 2.5.0, deep_ep/buffers/ep.py, get_theoretical_num_sms.
    write_once: each partial row is pulled over NVLink or, past RDMA, read where it landed, once; the sum is written once. Rows that
    leave by RDMA are first copied to a send buffer (direct), or summed into it by node (hybrid). Source: dispatch mirrored.
    """
    dispatch = dispatch_volumes(domain, distinct_ranks, distinct_nodes, share)
    if layout == "staged":
        return Volumes(
            dispatch.sm_write - dispatch.nvlink, dispatch.sm_read + dispatch.nvlink, dispatch.rdma, dispatch.nvlink
        )
    extra = distinct_nodes / distinct_ranks if domain.two_level else dispatch.rdma
    return Volumes(1 + extra, share / distinct_ranks + extra, dispatch.rdma, dispatch.nvlink)


def stages(domain: Domain, distinct_ranks: float, distinct_nodes: float, layout: Layout) -> dict[str, Traffic]:
    """Every stage of a call by name: dispatch, combine, and with the staged layout dispatch_epilogue and combine_epilogue, the second
    kernels: every copy is read out of staging and written once to the output, and read out of it and summed into one row.

    Units: copies (module docstring). Source of the epilogues: deepinfer-ep 2.5.0, dispatch_copy_epilogue.cuh and
    combine_reduce_epilogue.cuh; in hybrid mode combine's copies were summed by node on the way, so its epilogue reads one a node.
    """
    found = {
        "dispatch": shown(dispatch_volumes(domain, distinct_ranks, distinct_nodes, 1.0)),
        "combine": shown(combine_volumes(domain, distinct_ranks, distinct_nodes, 1.0, layout)),
    }
    if layout == "staged":
        partials = distinct_nodes / distinct_ranks if domain.two_level else 1.0
        found["dispatch_epilogue"] = Traffic(sm_read=1.0, sm_write=1.0, rdma=0.0, nvlink=0.0)
        found["combine_epilogue"] = Traffic(sm_read=partials, sm_write=1.0 / distinct_ranks, rdma=0.0, nvlink=0.0)
    return found


def bytes_moved(traffic: Traffic, *, num_tokens: int, distinct_ranks: float, bytes_per_copy: int) -> Traffic:
    """Bytes that one rank moves in a stage for `num_tokens` of its own tokens of `bytes_per_copy` bytes each (balanced group)."""
    scale = num_tokens * distinct_ranks * bytes_per_copy
    return Traffic(traffic.sm_read * scale, traffic.sm_write * scale, traffic.rdma * scale, traffic.nvlink * scale)
