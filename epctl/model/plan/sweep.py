"""Rows of a sweep: for every combination the numbers of a single plan, under the same names, without what explains them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from epctl.model.budget_lines import breaks
from epctl.model.ep_types import ByAtomics, Counts, Link, LogicalSizes, Sizes
from epctl.model.lb import LbPlan
from epctl.model.plan.chosen import Chosen, chosen, load_of
from epctl.model.plan.ep_family import qps_of
from epctl.model.plan.families import plan_family
from epctl.model.plan.request import Request, Sweep
from epctl.model.plan.settle import Files, Settled, settled
from epctl.model.plan.types import FAMILIES, BucketFamily, EngramFamily, PpFamily, Qps, Refused
from epctl.model.refusal import RefusalError
from epctl.model.timing_types import StageTime
from epctl.model.traffic import Traffic


class TimeRow(Struct, frozen=True):
    """Of a StageTime, what a table has room for."""

    us: float
    us_low: float
    us_high: float
    us_slow_rank: float
    binding: str
    logical_gbs: float
    wire_gbs: float
    wire_link: str


class TimeRows(Struct, frozen=True):
    """By stage."""

    dispatch: TimeRow
    combine: TimeRow


class EpRow(Struct, frozen=True):
    """Of an EpFamily, what a table has room for."""

    status: str
    num_ranks: int
    experts_per_rank: int
    physical_domain: Sizes
    logical_domain: LogicalSizes
    expected_distinct_ranks: float
    expected_distinct_ranks_exact: str
    expected_distinct_nodes: float
    expected_distinct_nodes_exact: str
    traffic: Traffic
    bound_link: Link
    slowest_link: Link
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
    sms_left: int
    mode: str
    qps: Qps
    times: TimeRows
    buffer_bytes: int
    fits: bool
    budgets_broken: tuple[str, ...]


class Row(Struct, frozen=True):
    """One combination: its values by key, and the family's numbers or why there are none."""

    keys: dict[str, float | int | bool | str]
    ep: EpRow | Refused | UnsetType = UNSET
    lb: LbPlan | Refused | UnsetType = UNSET
    bucket: BucketFamily | Refused | UnsetType = UNSET
    engram: EngramFamily | Refused | UnsetType = UNSET
    pp: PpFamily | Refused | UnsetType = UNSET

    @property
    def plan(self) -> Any:  # noqa: ANN401 - one of five, or Refused
        """The family's numbers."""
        return next(found for found in (self.ep, self.lb, self.bucket, self.engram, self.pp) if found is not UNSET)


def rows(request: Request, sweep: Sweep, files: Files) -> Iterator[Row]:
    """A row for every combination. A combination that cannot be planned is a row that says why.

    Raises RefusalError unknown_family.
    """
    fields: dict[str, Any] = {name: getattr(request, name) for name in request.__struct_fields__}
    keys = sweep.keys
    for values in sweep.combinations():
        fields.update(zip(sweep.fields, values, strict=True))
        yield _row(Request(**fields), dict(zip(keys, values, strict=True)), files)


def _row(request: Request, keys: dict[str, Any], files: Files) -> Row:
    what = request.what or "ep"
    if what not in FAMILIES:
        why = f"there are {', '.join(FAMILIES)}"
        raise RefusalError("unknown_family", f"--what is {what!r}", why, "give --what ep")
    try:
        if what == "ep":
            found = settled(request, files)
            return Row(keys, _ep_row(chosen(found, explain=False), found))
        return Row(keys, **{what: plan_family(what, request, files)})
    except RefusalError as error:
        refused = Refused(
            error_code=error.code, what=error.what, why=error.why, todo=error.todo, deepep_2_5_0=error.deepep_2_5_0
        )
        return Row(keys, **{what: refused})


def _ep_row(best: Chosen, found: Settled) -> EpRow:
    plan = best.plan
    broken = breaks(best.judged, found.node, best.request, best.buffer_bytes, found.request.contexts, load_of(found))
    return EpRow(
        plan.status,
        plan.num_ranks,
        plan.experts_per_rank,
        plan.physical_domain,
        plan.logical_domain,
        plan.expected_distinct_ranks,
        plan.expected_distinct_ranks_exact,
        plan.expected_distinct_nodes,
        plan.expected_distinct_nodes_exact,
        plan.traffic,
        plan.bound_link,
        plan.slowest_link,
        plan.sm_demand,
        plan.sm_demand_padded,
        plan.distance_to_integer,
        plan.num_sms_uncapped,
        plan.num_sms,
        plan.allocated_qps,
        plan.num_qps,
        plan.kernel_limits_broken,
        plan.july_2026_release,
        plan.rules,
        plan.sms_left,
        best.request.mode,
        qps_of(found, plan),
        TimeRows(_time_row(best.times[0]), _time_row(best.times[1])),
        best.buffer_bytes,
        not broken,
        broken,
    )


def _time_row(time: StageTime) -> TimeRow:
    return TimeRow(
        time.us,
        time.us_low,
        time.us_high,
        time.us_slow_rank,
        time.binding,
        time.logical_gbs,
        time.wire_gbs,
        time.wire_link,
    )


__all__ = ["EpRow", "Row", "TimeRow", "rows"]
