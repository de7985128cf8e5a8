"""`epctl plan`, assembled: from a request to a report, or to the rows of a sweep. Pure: files are read by the caller.

`request` the flags · `settle` what fills the gaps · `gates` means and spreads · `chosen` mode, counts and times · `ep_family`,
`sensitivity`, `families` the report's objects · `sweep` rows · `settings` for other programs · `types` the report.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from epctl.model.inputs import FLAG_NAMES, Node
from epctl.model.plan.ep_family import plan_dispatch_combine
from epctl.model.plan.families import or_refused, plan_family
from epctl.model.plan.request import Request
from epctl.model.plan.settle import DEFAULTS, Files, Settled, fabric_of, node_of, rules_of, settled, told, value
from epctl.model.plan.types import FAMILIES, EpFamily, Input, PlanReport, Refused
from epctl.model.refusal import RefusalError

_SHOWN = ("experts", "topk", "tokens", "hidden", "dtype", "nodes", "mode", "overlap", "rules", "gate")
_OF_FAMILY = {
    "ep": (*_SHOWN, "multiple_reduction", "reserved_bytes"),
    "lb": ("rules",),
    "bucket": ("op", "nodes", "tensor_bytes", "rules"),
    "engram": ("layers", "tokens", "entries", "entries_per_token", "max_reads_per_qp", "hidden", "dtype", "nodes"),
    "pp": ("tensor_bytes", "inflight"),
}
FLOOR = (
    "These times are floors: the write-once kernels' own times are not measured yet; they are what links and SMs allow, plus launches "
    "and flag hops."
)


def plan(request: Request, files: Files, *, version: str = "", sample: str = "") -> PlanReport:
    """The report. Without --what, dispatch and combine decide and the other families come along, refused or not.

    version: epctl's own. sample: name of the packaged sample that the node is. Raises RefusalError where the family that was asked for
    cannot be planned.
    """
    what = request.what or "ep"
    if what not in FAMILIES:
        why = f"there are {', '.join(FAMILIES)}"
        raise RefusalError("unknown_family", f"--what is {what!r}", why, "give --what ep")
    rules = rules_of(request, files)
    node = node_of(request, files, rules)
    found = settled(request, files) if what == "ep" else None
    mine = plan_dispatch_combine(found) if found is not None else plan_family(what, request, files)
    families: dict[str, object] = {what: mine}
    if request.what is None:
        for name in FAMILIES[1:]:
            families[name] = or_refused(lambda name=name: plan_family(name, request, files))  # type: ignore[misc]
    fits = mine.fits if isinstance(mine, EpFamily) else not getattr(mine, "over_device", False)
    notes = (FLOOR,) if isinstance(mine, EpFamily) and mine.floor else ()
    return PlanReport(
        epctl=version,
        node=node.name,
        sample=sample,
        rules=rules.name,
        fabric=fabric_of(request, files),
        inputs=_inputs(request, files, node, found, what),
        fits=fits,
        verdict=_verdict(mine, what),
        notes=notes,
        **families,  # type: ignore[arg-type]
    )


def _verdict(mine: object, what: str) -> str:
    if isinstance(mine, EpFamily):
        broken = [entry for entry in mine.budgets if not entry.fits]
        if not broken:
            return "fits every budget"
        text = "; ".join(f"{entry.name}: {entry.text}" for entry in broken)
        near = (
            "no plan of up to 256 nodes fits"
            if isinstance(mine.nearest, UnsetType)
            else mine.nearest.text.split("; ")[-1]
        )
        return f"does not fit {text}. {near[0].upper()}{near[1:]}"
    if getattr(mine, "over_device", False):
        return f"does not fit: the rule asks for {getattr(mine, 'num_sms', 0)} SMs, more than the device has"
    return f"planned: {what}"


def _inputs(request: Request, files: Files, node: Node, found: Settled | None, what: str) -> dict[str, Input]:
    """Every value that went in, by the name of its flag where it has one."""
    inputs: dict[str, Input] = {}
    for field in _OF_FAMILY[what]:
        mine = getattr(found, field, None) if found is not None and field in ("experts", "topk") else None
        entry = mine if mine is not None else value(request, field)
        if entry is not None:
            inputs[field] = Input(entry, _told(request, field, found))
    if isinstance(found, Settled) and request.gate is not None:
        inputs["seed"] = Input(value(request, "seed"), told(request, "seed"))
    rules = rules_of(request, files)
    for name in ("sm_read_gbs", "sm_write_gbs"):
        source = rules.sources[name]
        by_rules = "" if source.startswith(("flag ", "calibration ")) else f"rules {rules.name}: "
        inputs[name] = Input(getattr(rules, name), f"{by_rules}{source}")
    names = node.__struct_fields__ if what == "ep" else (*FLAG_NAMES, "nics_per_gpu")
    inputs |= {name: Input(getattr(node, name).value, getattr(node, name).source) for name in names if name != "name"}
    return inputs


def _told(request: Request, field: str, found: Settled | None) -> str:
    if found is not None and field == "experts" and found.experts != request.experts:
        return f"flags --experts {request.experts} and --redundant-experts, rounded up until the ranks divide it"
    if found is not None and field == "topk" and request.topk is None:
        return f"width of the trace {request.gate}"
    return told(request, field)


__all__ = ["DEFAULTS", "UNSET", "Files", "PlanReport", "Refused", "Request", "plan"]
