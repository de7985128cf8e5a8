"""What a report has to say, in sections: the same for text and Markdown."""

from __future__ import annotations

from msgspec import Struct, UnsetType

from epctl.model.plan.types import BucketFamily, EngramFamily, EpFamily, Input, PlanReport, PpFamily, Refused
from epctl.model.show.sections_ep import ep_sections
from epctl.model.show.shape import Line, Mark, Section
from epctl.model.show.words import number, plural, size


class Head(Struct, frozen=True):
    """Title and what is planned for."""

    title: str
    lines: tuple[str, ...]
    sample: str
    """'' or the line that says that the node is none of the reader's."""


def head(report: PlanReport) -> Head:
    """The first lines."""
    sample = f"SAMPLE {report.sample}: packaged example data, not your machine" if report.sample else ""
    where = f"node: {report.node}; rules: {report.rules}"
    ep, inputs = report.ep, report.inputs
    if isinstance(ep, UnsetType):
        return Head(f"epctl plan: {report.verdict}" if report.fits else "epctl plan", (where,), sample)
    what = f"epctl plan: {inputs['experts'].value} experts, top-{inputs['topk'].value}"
    shape = ep.physical_domain
    ranks = f"{plural(shape.rdma_ranks, 'node')} x {plural(shape.nvlink_ranks, 'GPU')} = {plural(ep.num_ranks, 'rank')}"
    call = f"{inputs['tokens'].value} tokens a rank, hidden {inputs['hidden'].value}, {inputs['dtype'].value} dispatch"
    overlap = "beside GEMMs" if inputs["overlap"].value else "nothing beside it"
    return Head(what, (f"{ranks}, {ep.mode}, {overlap}", call, where), sample)


def sections(report: PlanReport) -> list[Section]:
    """All sections, in the order in which they are shown."""
    found: list[Section] = []
    if isinstance(report.ep, EpFamily):
        found += ep_sections(report.ep)
    families = _families(report, alone=not isinstance(report.ep, EpFamily))
    found += [families] if families.rows else []
    found += _against(report)
    found.append(_inputs(report.inputs))
    return found


def _families(report: PlanReport, *, alone: bool) -> Section:
    rows = []
    for name, told in (("lb", _lb), ("bucket", _bucket), ("engram", _engram), ("pp", _pp)):
        found = getattr(report, name)
        if isinstance(found, UnsetType):
            continue
        if isinstance(found, Refused):
            rows.append(Line((name, f"none: {found.what}; {found.why}")))
            continue
        rows += [Line((name if i == 0 else "", text)) for i, text in enumerate(told(found))]
    return Section("Plan" if alone else "Other families (--what NAME for one of them)", rows=tuple(rows))


def _lb(found: object) -> list[str]:
    count, demand = getattr(found, "num_sms", 0), getattr(found, "sm_demand", 0.0)
    over = ", more than the device has" if getattr(found, "over_device", False) else ""
    return [f"{count} SMs for weights and gradients over NVLink (demand {demand:.4g}){over}"]


def _bucket(found: BucketFamily) -> list[str]:
    lines = []
    for op, plan in found.ops.items():
        mark = " (asked for)" if op == found.op else ""
        if plan.num_sms == 0:
            lines.append(f"{op}{mark}: no SMs, copy engines and NICs do the work")
            continue
        lines.append(f"{op}{mark}: {plan.num_sms} SMs over {plan.domain}, output {number(plan.rate_gbs)} GB/s a rank")
    memory = f"{size(found.storage.storage_bytes)} of storage, {size(found.workspace.allocated_bytes)} of workspace"
    return [*lines, memory]


def _engram(found: EngramFamily) -> list[str]:
    limit = ", reads in flight limited" if found.restrict_rd_atomic else ""
    return [
        f"{found.num_qps} QPs of depth {found.qp_depth} for {found.slots_at_num_qps} requests each{limit}",
        f"{size(found.gpu_bytes)} on the GPU, {size(found.rdma_storage_bytes)} of entries a rank",
        *(f"limit broken: {code}" for code in found.kernel_limits_broken),
    ]


def _pp(found: PpFamily) -> list[str]:
    return [f"{size(found.storage_bytes)} for sends and receives, {size(found.workspace.allocated_bytes)} of workspace"]


def _against(report: PlanReport) -> list[Section]:
    if isinstance(report.against, UnsetType):
        return []
    found, ep = report.against, report.ep
    if found.reason:
        return [Section("Against deep_ep", lines=(f"not asked: {found.reason}",))]
    mine = {}
    if isinstance(ep, EpFamily):
        mine = {
            "num_sms": ep.num_sms,
            "num_qps": ep.qps.used,
            "buffer_bytes": ep.buffer.buffer_bytes,
            "num_ranks": ep.num_ranks,
        }
    rows = []
    for name, value in found.values.items():
        ours = mine.get(name)
        mark: Mark = "" if ours is None or ours == value else "bad"
        verdict = "" if ours is None else "same" if ours == value else "differs"
        rows.append(Line((name, number(value), number(ours), verdict), mark))
    columns = ("", "deep_ep", "epctl", "")
    return [Section(f"Against deep_ep ({found.package})", columns=columns, rows=tuple(rows), right=frozenset({1, 2}))]


_UNITS = {"memory_bytes": size, "smem_bytes": size, "reserved_bytes": size}


def _inputs(inputs: dict[str, Input]) -> Section:
    rows = []
    for name, entry in inputs.items():
        text = _UNITS[name](int(entry.value)) if name in _UNITS and entry.value else number(entry.value)
        rows.append(Line((name, text, entry.source)))
    return Section("Where each number comes from", rows=tuple(rows), right=frozenset({1}))
