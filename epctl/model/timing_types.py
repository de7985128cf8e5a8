"""What the time model is asked, and what it answers."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Stage = Literal["dispatch", "combine"]
Dtype = Literal["bf16", "fp8"]
Sends = Literal["rank", "selection"]
"""rank: a token travels once to each rank that it reaches. selection: once for each expert it picks, as DeepEP V1's low-latency kernels
send it."""


class Workload(Struct, frozen=True, kw_only=True):
    """One call on every rank of the group. Sizes are per rank."""

    tokens: int
    hidden: int = 7168
    topk: int = 8
    dtype: Dtype = "fp8"
    """Of dispatch; combine returns BF16."""
    sends: Sends = "rank"
    slow_rank: float = 1.0
    """Copies at the busiest rank over the mean of all (`spread.RankLoad.step_max_mean`, or its p99): what the group waits for."""
    slow_node: float = 1.0
    """The same of nodes. In two-level kernels it is the load of RDMA: the GPUs of a node share what comes in, whichever it is for."""


class Band(Struct, frozen=True):
    """A constant that is known within limits. `source` says where from."""

    low: float
    expected: float
    high: float
    source: str


class Term(Struct, frozen=True):
    """One part of a stage's time. Terms with `adds` sum up to the stage's us; the others run at the same time as the slowest link and are
    hidden behind it."""

    name: str
    bytes: float
    """That one rank moves; 0 for latencies."""
    rate_gbs: float
    us: float
    formula: str
    adds: bool
    binding: bool = False


class StageTime(Struct, frozen=True, kw_only=True):
    """Time of one stage on a rank of average load, from launch to usable output.

    logical_gbs and wire_gbs are both over `us`. Logical counts the values and scales of every copy that an expert rank gets, the own
    rank's included, as DeepEP's tests count; wire counts what crosses `wire_link`, and nothing else. DeepEP prints its figures over the
    main kernel alone, without the second kernel: those are the main_* fields.
    """

    stage: Stage
    terms: tuple[Term, ...]
    us: float
    us_low: float
    """Links at the best that was ever measured, small fixed costs."""
    us_high: float
    """Links at the worst of the band, slow rank, no overlap between the levels of a two-level kernel, HBM shared with other kernels."""
    us_slow_rank: float
    """As `us`, on the busiest rank."""
    binding_slow_rank: str
    """As `binding`, there."""
    binding: str
    """Name of the term that decides, or latency where launches, hops and fixed costs together take longest."""
    logical_gbs: float
    wire_gbs: float
    wire_link: Literal["nvlink", "rdma", "none"]
    main_us: float
    main_logical_gbs: float
    """Copies that expert ranks get, over main_us (scale-up in DeepEP's words)."""
    main_scaleout_gbs: float
    """Copies by node, the own node's included, over main_us (scale-out in DeepEP's words); 0 within one node."""
    copies: float
    """Delivered per rank."""
    row_bytes: int
    """Of one copy as it travels, with its metadata."""
