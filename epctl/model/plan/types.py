"""The report of `epctl plan`: one object a family, and where every number came from."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from epctl.model.bucket import BucketPlan
from epctl.model.budget import Budget, Change
from epctl.model.buffers import EpBufferPlan
from epctl.model.channels import ChannelPlan, WarpPlan
from epctl.model.deepinfer import DecodeRate, Layout
from epctl.model.engram import EngramPlan
from epctl.model.ep_types import EpPlan
from epctl.model.fit import WriteOncePlan
from epctl.model.lb import LbPlan
from epctl.model.reference import Published
from epctl.model.spread import Spread
from epctl.model.storage import StoragePlan, WorkspacePlan
from epctl.model.timing_types import StageTime

FAMILIES = ("ep", "lb", "bucket", "engram", "pp")


class Schema(Struct, frozen=True):
    """Name and version of a format."""

    name: str
    version: int


class Input(Struct, frozen=True):
    """A value that went in, and who said so: a flag, a file, a profile, a preset or a default."""

    value: float | int | bool | str
    source: str


class Qps(Struct, frozen=True):
    """Queue pairs per peer (GIN contexts) of a rank on this node's adapter."""

    allocated: int
    used: int


class GateReport(Struct, frozen=True, kw_only=True):
    """Ranks and nodes that a token reaches. The spreads are there where the gate was asked for by name or as a trace."""

    name: str
    kind: str
    """How the means were had."""
    ranks: Spread | UnsetType = UNSET
    nodes: Spread | UnsetType = UNSET


class Sensitivity(Struct, frozen=True, kw_only=True):
    """The plan with one thing changed. Times in µs; `ratio`: both stages together over the plan's own."""

    change: str
    num_sms: int | UnsetType = UNSET
    mode: str | UnsetType = UNSET
    dispatch_us: float | UnsetType = UNSET
    combine_us: float | UnsetType = UNSET
    ratio: float | UnsetType = UNSET
    note: str = ""
    """What else had to change, or why there is no such plan."""


class ReferenceRow(Published, frozen=True, kw_only=True):
    """A published figure beside the model's."""

    predicted: float | None
    ratio: float | None
    """predicted / value."""


class Nearest(Struct, frozen=True, kw_only=True):
    """The plan that fits with the fewest and mildest changes."""

    text: str
    constraints: tuple[str, ...]
    changes: tuple[Change, ...]
    num_nodes: int
    mode: str
    prefer_overlap: bool
    num_max_tokens_per_rank: int
    num_contexts: int
    num_sms: int


class EpFamily(EpPlan, frozen=True, kw_only=True):
    """Dispatch and combine: the plan's own fields, then what follows from them."""

    mode: str
    qps: Qps
    times: dict[str, StageTime]
    """By stage: dispatch, combine."""
    floor: bool
    """The times are floors: no kernel of this layout was measured yet."""
    buffer: EpBufferPlan
    """DeepEP 2.5's layout."""
    buffer_write_once: WriteOncePlan
    """epctl's own layout."""
    workspace: WorkspacePlan
    buffer_bytes: int
    """Of the rules' layout, without workspace."""
    largest_tokens: int
    """Tokens per rank that the memory would hold in the rules' layout; 0: not even one."""
    channels: ChannelPlan | UnsetType = UNSET
    """Two-level kernels only."""
    warps: WarpPlan | UnsetType = UNSET
    """Direct kernels only."""
    gate: GateReport
    budgets: tuple[Budget, ...]
    fits: bool
    budgets_broken: tuple[str, ...]
    """Names of the budgets that do not fit."""
    nearest: Nearest | UnsetType = UNSET
    """Where the plan does not fit and another does."""
    sensitivities: tuple[Sensitivity, ...]
    advice: tuple[str, ...]
    reference: tuple[ReferenceRow, ...]
    layout: Layout | UnsetType = UNSET
    decode_rate: DecodeRate | UnsetType = UNSET


class BucketFamily(BucketPlan, frozen=True, kw_only=True):
    """The operation asked for, the other two, and memory."""

    op: str
    ops: dict[str, BucketPlan]
    storage: StoragePlan
    workspace: WorkspacePlan
    fits: bool = True
    limits_broken: tuple[str, ...] = ()
    """What the kernels, or the memory of a GPU, do not take: a sentence each."""


class EngramFamily(EngramPlan, frozen=True, kw_only=True):
    """Queue pairs and memory for fetching."""

    gpu_bytes: int
    rdma_storage_bytes: int
    workspace: WorkspacePlan
    fits: bool = True
    limits_broken: tuple[str, ...] = ()
    """What the kernels, or the memory of a GPU, do not take: a sentence each."""


class PpFamily(StoragePlan, frozen=True, kw_only=True):
    """Memory for pipeline send and receive."""

    workspace: WorkspacePlan
    fits: bool = True
    limits_broken: tuple[str, ...] = ()
    """What the kernels, or the memory of a GPU, do not take: a sentence each."""


class Refused(Struct, frozen=True, kw_only=True):
    """A family that cannot be planned with these inputs; `status` is always "error"."""

    status: str = "error"
    error_code: str
    what: str
    why: str
    todo: str
    deepep_2_5_0: str = ""
    """What the release does with the same input, '' where that is not known."""


class Answers(Struct, frozen=True, kw_only=True):
    """What the DeepEP that is installed answers to the same question (--against); `reason` says why it could not be asked."""

    package: str = ""
    reason: str = ""
    values: dict[str, float | int | str] = {}


class PlanReport(Struct, frozen=True, kw_only=True):
    """A plan. Families that were not asked for are left out."""

    schema: Schema = Schema("epctl.plan", 1)
    epctl: str
    node: str
    sample: str = ""
    """Name of the packaged sample that the node is."""
    rules: str
    fabric: str
    """Between nodes: efa, rdma, '' for none."""
    inputs: dict[str, Input]
    fits: bool
    verdict: str
    ep: EpFamily | UnsetType = UNSET
    lb: LbPlan | Refused | UnsetType = UNSET
    bucket: BucketFamily | Refused | UnsetType = UNSET
    engram: EngramFamily | Refused | UnsetType = UNSET
    pp: PpFamily | Refused | UnsetType = UNSET
    against: Answers | UnsetType = UNSET
    notes: tuple[str, ...] = ()
