"""`epctl plan`, assembled: from a request to a report, or to the rows of a sweep. Pure: files are read by the caller.

`request` the flags · `settle` what fills the gaps · `gates` means and spreads · `chosen` mode, counts and times · `ep_family`,
`sensitivity`, `families` the report's objects · `sweep` rows · `settings` for other programs · `types` the report.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from epctl.model.inputs import Node, slot_note
from epctl.model.limits import OF_HARDWARE
from epctl.model.plan.ep_family import plan_dispatch_combine
from epctl.model.plan.families import or_refused, plan_family, tensor_bytes
from epctl.model.plan.notes import domain_note
from epctl.model.plan.request import Request
from epctl.model.plan.settle import DEFAULTS, Files, Settled, fabric_of, gpu_of, node_of, rules_of, settled, told, value
from epctl.model.plan.types import FAMILIES, EpFamily, Input, PlanReport, Refused
from epctl.model.refusal import RefusalError
from epctl.model.storage import aligned

_SHOWN = ("experts", "topk", "tokens", "hidden", "dtype", "nodes", "mode", "overlap", "rules", "gate")
_OF_FAMILY = {
    "ep": (*_SHOWN, "multiple_reduction", "reserved_bytes"),
    "lb": ("rules",),
    "bucket": ("op", "nodes", "tensor_bytes", "rules"),
    "engram": ("layers", "tokens", "entries", "entries_per_token", "max_reads_per_qp", "hidden", "dtype", "nodes"),
    "pp": ("tensor_bytes", "inflight"),
}
_RATES = ("sm_read_gbs", "sm_write_gbs")
_OF_NODE: dict[str, tuple[str, ...]] = {
    "ep": tuple(name for name in Node.__struct_fields__ if name != "name"),
    "lb": ("nvlink_gbs", "device_sms"),
    "bucket": ("gpus_per_node", "nvlink_gbs", "rdma_gbs", "device_sms"),
    "engram": ("fast_atomics",),
    "pp": (),
}
"""By family: what is shown of flags, and of the node."""
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
    fits = bool(getattr(mine, "fits", True)) and not getattr(mine, "over_device", False)
    notes: tuple[str, ...] = (FLOOR,) if isinstance(mine, EpFamily) and mine.floor else ()
    notes += tuple(note for note in (slot_note_of(request, files, node), *files.notes.values()) if note)
    told_of_domain = domain_note(found) if found is not None else ""
    notes += (told_of_domain,) if told_of_domain else ()
    return PlanReport(
        epctl=version,
        node=node.name,
        sample=sample,
        rules=rules.name,
        fabric=fabric_of(request, files),
        inputs=_inputs(request, files, node, found, what),
        fits=fits,
        verdict=_verdict(mine, what, found),
        notes=notes,
        **families,  # type: ignore[arg-type]
    )


def slot_note_of(request: Request, files: Files, node: Node) -> str:
    """'' or what is to be said about the RDMA rate."""
    return slot_note(node.rdma_gbs, gpu_of(request, files))


def _verdict(mine: object, what: str, found: Settled | None) -> str:
    if isinstance(mine, EpFamily) and found is not None:
        broken = [f"{entry.name} ({entry.text})" for entry in mine.budgets if not entry.fits]
        return f"{'; '.join(broken)}. {_nearest(mine, found)}." if broken else "every budget holds it"
    if getattr(mine, "over_device", False):
        return f"the rule asks for {getattr(mine, 'num_sms', 0)} SMs, more than the device has"
    return "; ".join(getattr(mine, "limits_broken", ())) or what


def _nearest(mine: EpFamily, found: Settled) -> str:
    if "hidden_not_256_multiple" in mine.buffer.kernel_limits_broken:
        return f"Nearest that fits: hidden {found.hidden} -> {aligned(found.hidden, 256)}"
    hardware = [code for code in mine.kernel_limits_broken if code in OF_HARDWARE]
    if hardware:
        within = " beyond one node" if hardware == ["needs_gdaki"] else ""
        return f"No plan of the rules {mine.rules} runs on this hardware{within}"
    if isinstance(mine.nearest, UnsetType):
        return "No plan of up to 256 nodes fits"
    return f"Nearest that fits: {', '.join(map(str, mine.nearest.changes))}"


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
    if "tensor_bytes" in _OF_FAMILY[what] and request.tensor_bytes is None:
        sizes = "default: one tensor of tokens x hidden values of 2 bytes"
        inputs["tensor_bytes"] = Input(tensor_bytes(request)[0], sizes)
    rules = rules_of(request, files)
    for name in _RATES if "rules" in _OF_FAMILY[what] else ():
        source = rules.sources[name]
        by_rules = "" if source.startswith(("flag ", "calibration ")) else f"rules {rules.name}: "
        inputs[name] = Input(getattr(rules, name), f"{by_rules}{source}")
    return inputs | {name: Input(getattr(node, name).value, getattr(node, name).source) for name in _OF_NODE[what]}


def _told(request: Request, field: str, found: Settled | None) -> str:
    if found is not None and field == "experts" and found.experts != request.experts:
        return f"flags --experts {request.experts} and --redundant-experts, rounded up until the ranks divide it"
    if found is not None and field == "topk" and request.topk is None:
        return f"width of the trace {request.gate}"
    return told(request, field)


__all__ = ["DEFAULTS", "UNSET", "Files", "PlanReport", "Refused", "Request", "plan"]
