"""What goes into a plan for dispatch and combine, and what comes out."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from msgspec import Struct

from epctl.model.traffic import Domain, Traffic, Volumes

Link = Literal["nvlink", "rdma", "none"]


class EpRequest(Struct, frozen=True, kw_only=True):
    """What to plan for. Rates in GB/s and one way: per GPU over NVLink, per GPU over its NIC."""

    num_experts: int
    num_topk: int
    num_nodes: int
    gpus_per_node: int
    mode: str
    """direct or hybrid."""
    nvlink_gbs: float
    rdma_gbs: float
    prefer_overlap: bool = True
    """Whether other kernels (GEMMs) run at the same time and want the SMs."""
    device_sms: int = 132
    sm_read_gbs: float | None = None
    """Per SM; None: the rules' rate."""
    sm_write_gbs: float | None = None
    distinct_ranks: float | None = None
    """Ranks that a token reaches; None: a balanced gate's expectation. From `spread.best_estimate` for other gates."""
    distinct_nodes: float | None = None


class Sizes(Struct, frozen=True):
    """Ranks by physical reach."""

    rdma_ranks: int
    nvlink_ranks: int


class LogicalSizes(Struct, frozen=True):
    """Ranks as the kernels see them."""

    scaleout_ranks: int
    scaleup_ranks: int


class ByAtomics(Struct, frozen=True):
    """A QP count for NICs with fast RDMA atomics (device id MT4131, ConnectX-8) and for others."""

    fast_atomics: int
    slow_atomics: int


class Counts(Struct, frozen=True):
    """What the July 2026 release plans for the same request."""

    num_sms: int
    num_qps: ByAtomics


class Term(Struct, frozen=True):
    """One step of the plan: `formula` over `inputs` gives `value`. `binding`: this one decided the next step."""

    name: str
    formula: str
    inputs: dict[str, float | int | str]
    value: float | int | str
    unit: str = ""
    binding: bool = False


class EpPlan(Struct, frozen=True, kw_only=True):
    """The plan. Names and shapes of the first fields follow the golden file; traffic is dispatch's, per delivered copy."""

    status: Literal["ok"] = "ok"
    num_ranks: int
    experts_per_rank: int
    physical_domain: Sizes
    logical_domain: LogicalSizes
    expected_distinct_ranks: float
    expected_distinct_ranks_exact: str
    """As a reduced fraction; '' where the request gave a mean."""
    expected_distinct_nodes: float
    expected_distinct_nodes_exact: str
    traffic: Traffic
    bound_link: Link
    """The link that the rules plan for; none: no link carries anything (to their mind), so they take what idle_takes_device says."""
    slowest_link: Link
    """The link that really takes longest for this traffic."""
    sm_demand: float
    sm_demand_padded: float
    distance_to_integer: float
    num_sms_uncapped: int
    num_sms: int
    allocated_qps: ByAtomics
    num_qps: ByAtomics
    kernel_limits_broken: tuple[str, ...]
    july_2026_release: Counts
    rules: str
    stages: dict[str, Traffic]
    """By stage: dispatch, combine and, where the layout is staged, their epilogues."""
    terms: tuple[Term, ...]
    sms_left: int
    """SMs of the device that the plan leaves to other kernels."""


class EpInputs(Struct, frozen=True):
    """A request that was checked."""

    request: EpRequest
    domain: Domain
    exact_ranks: Fraction
    exact_nodes: Fraction
    ranks: float
    nodes: float
    traffic: Volumes
