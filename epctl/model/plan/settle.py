"""From flags to what is reckoned with: presets, files, profiles and defaults fill what was not given."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from epctl.core.fact import Absent
from epctl.model.buffers import EpBufferRequest
from epctl.model.deepinfer import Layout, LayoutRequest, plan_layout
from epctl.model.hardware import DEFAULT_HARDWARE, Hardware, hardware, hardware_of_gpu
from epctl.model.inputs import Flags, Node, resolve
from epctl.model.plan.bounds import check_bounds, check_shares
from epctl.model.plan.request import Request, flag
from epctl.model.presets import PRESETS, preset
from epctl.model.readings import Readings
from epctl.model.refusal import MAX_COUNT, RefusalError, rate
from epctl.model.rules import Rules, calibrated, rules_named
from epctl.model.timing_types import Dtype
from epctl.model.traffic import Domain, domain_of

DEFAULTS: dict[str, Any] = {
    "hidden": 7168,
    "tokens": 4096,
    "dtype": "fp8",
    "nodes": 1,
    "mode": "auto",
    "overlap": True,
    "multiple_reduction": True,
    "gate": "balanced",
    "seed": 0,
    "rules": "deepep-2.5",
    "reserved_bytes": 0,
    "counters": False,
    "full_mesh": False,
    "op": "all_reduce",
    "inflight": 2,
    "layers": 1,
    "entries": "100000",
    "entries_per_token": 8,
    "max_reads_per_qp": 16,
    "cp": 1,
    "requests": 64,
    "draft_length": 0,
}
"""Field → what stands where neither a flag nor a preset gives it."""
MODES = ("auto", "direct", "hybrid")
FROM_PRESET = {"tokens": "tokens", "dtype": "dtype", "overlap": "prefer_overlap"}


class Calibration(Struct, frozen=True, forbid_unknown_fields=True):
    """Rates per SM (GB/s) that were measured on the machine at hand: the file of --calibration."""

    sm_read_gbs: float
    sm_write_gbs: float
    source: str = "calibration"


class Files(Struct):
    """What the files that a request names say, by the name that the request has for them. The model itself opens none."""

    readings: dict[str, Readings] = {}
    """By `source_name`."""
    traces: dict[str, tuple[tuple[int, ...], ...]] = {}
    """Rows of top-k indices by the text of --gate."""
    calibrations: dict[str, Calibration] = {}
    notes: dict[str, str] = {}
    """What readers of the plan are to know of a file, by its name."""
    memo: dict[Any, Any] = {}
    """What was worked out before: a sweep asks for the same again and again."""


def source_name(request: Request) -> str:
    """Key of the request's snapshot in Files.readings; '' without one."""
    if request.from_ is not None:
        return f"from {request.from_}"
    return f"sample {request.sample}" if request.sample is not None else ""


class Settled(Struct, frozen=True):
    """All values of a request, and the node to plan for."""

    request: Request
    files: Files
    node: Node
    rules: Rules
    experts: int
    """Routed and redundant ones."""
    topk: int
    tokens: int
    hidden: int
    dtype: Dtype
    nodes: int
    gpus_per_node: int
    mode: Literal["auto", "direct", "hybrid"]
    overlap: bool
    layout: Layout | None

    @property
    def domain(self) -> Domain:
        """Of the group; the mode does not matter for its size."""
        return domain_of(self.nodes, self.gpus_per_node, "direct")

    def buffer(self, mode: str) -> EpBufferRequest:
        """What the EP buffer has to hold."""
        return EpBufferRequest(
            num_nodes=self.nodes,
            gpus_per_node=self.gpus_per_node,
            mode=mode,
            num_max_tokens_per_rank=self.tokens,
            hidden=self.hidden,
            num_topk=self.topk,
            fp8_dispatch=self.dtype == "fp8",
            multiple_reduction=bool(value(self.request, "multiple_reduction")),
        )


def value(request: Request, field: str) -> Any:  # noqa: ANN401 - any flag's
    """Of a flag: given, from the preset, or the default; None where there is none."""
    given = getattr(request, field)
    if given is not None:
        return given
    if request.preset is not None and field in FROM_PRESET:
        return getattr(preset(request.preset), FROM_PRESET[field])
    return DEFAULTS.get(field)


def settled(request: Request, files: Files) -> Settled:
    """Raises RefusalError where a flag is missing, has no such value, or the node is not known well enough."""
    check_bounds(request)
    rules = rules_of(request, files)
    node = node_of(request, files, rules)
    experts, topk = experts_of(request), _needed(request, "topk", files)
    nodes, gpus = int(value(request, "nodes")), int(node.gpus_per_node.value)
    layout = _layout(request, nodes, gpus, experts)
    found = Settled(
        request=request,
        files=files,
        node=node,
        rules=rules,
        experts=layout.total_experts if layout is not None and request.redundant_experts is not None else experts,
        topk=topk,
        tokens=value(request, "tokens"),
        hidden=value(request, "hidden"),
        dtype=_one_of(request, "dtype", ("fp8", "bf16")),
        nodes=nodes,
        gpus_per_node=gpus,
        mode=_one_of(request, "mode", MODES),
        overlap=value(request, "overlap"),
        layout=layout,
    )
    domain_of(nodes, gpus, "direct")
    check_shares(found.experts, found.topk, nodes, gpus)
    _check_rest(request)
    return found


def experts_of(request: Request) -> int:
    """The routed experts. Raises RefusalError value_missing."""
    if request.experts is None:
        why = "the plan starts from the number of experts and how many a token picks"
        raise RefusalError("value_missing", "--experts is missing", why, "give --experts 256 --topk 8")
    if request.experts < 1:
        what, why = (
            f"--experts is {request.experts}",
            "the number of experts must be at least 1, and every rank holds some",
        )
        raise RefusalError("non_positive_argument", what, why, "give --experts 256")
    return request.experts


def _needed(request: Request, field: str, files: Files) -> int:
    """Top-k: given, or as wide as the trace."""
    rows = files.traces.get(request.gate or "")
    if request.topk is None and not rows:
        why = "the plan starts from the number of experts and how many a token picks"
        raise RefusalError("value_missing", f"{flag(field)} is missing", why, "give --experts 256 --topk 8")
    if request.topk is not None and rows and len(rows[0]) != request.topk:
        what = f"--topk is {request.topk}, but the rows of the trace {request.gate} have {len(rows[0])} entries"
        raise RefusalError("trace_invalid", what, "a row names the k experts of a token", f"give --topk {len(rows[0])}")
    return request.topk if request.topk is not None else len(rows[0] if rows else ())


def _one_of(request: Request, field: str, allowed: tuple[str, ...]) -> Any:  # noqa: ANN401 - a literal
    found = value(request, field)
    if found not in allowed:
        what = f"{flag(field)} is {found!r}"
        code = "unknown_mode" if field == "mode" else "value_invalid"
        raise RefusalError(code, what, f"it may be {', '.join(allowed)}", f"give {flag(field)} {allowed[0]}")
    return found


def _check_rest(request: Request) -> None:
    reserved = value(request, "reserved_bytes")
    if not 0 <= reserved <= MAX_COUNT:
        why = "it is the memory that weights, caches and activations take on each GPU"
        what = f"--reserved-bytes is {reserved}"
        raise RefusalError("absurd_argument", what, why, "give --reserved-bytes 100000000000")
    if request.from_ is not None and request.sample is not None:
        what, why = "--from and --sample exclude each other", "both name a node to plan for"
        raise RefusalError("value_invalid", what, why, "give one of them")


def rules_of(request: Request, files: Files) -> Rules:
    """The constants, with calibrated rates and those that flags give. Raises RefusalError unknown_rules, value_invalid, sm_rate_missing."""
    rules = rules_named(value(request, "rules"))
    if request.calibration is None and request.sm_read_gbs is None and request.sm_write_gbs is None:
        return rules
    key = ("rules", rules.name, request.calibration, request.sm_read_gbs, request.sm_write_gbs)
    if key not in files.memo:
        files.memo[key] = _with_flags(_with_calibration(rules, request, files), request)
    return files.memo[key]  # type: ignore[no-any-return]


def _with_calibration(rules: Rules, request: Request, files: Files) -> Rules:
    if request.calibration is None:
        return rules
    if rules.name != "epctl":
        what = f"--calibration is given, but the rules are {rules.name}"
        why = "rules of a release keep that release's rates; calibrated rates belong to the rules epctl"
        raise RefusalError("value_invalid", what, why, "give --rules epctl, or --sm-read-gbs and --sm-write-gbs")
    found = files.calibrations[request.calibration]
    source = f"calibration {request.calibration}: {found.source}"
    return calibrated(rules, sm_read_gbs=found.sm_read_gbs, sm_write_gbs=found.sm_write_gbs, source=source)


def _with_flags(rules: Rules, request: Request) -> Rules:
    sources, rates = dict(rules.sources), {}
    for name, example in (("sm_read_gbs", "180"), ("sm_write_gbs", "45")):
        given = getattr(request, name)
        if given is not None:
            rates[name] = rate(flag(name), given, "sm_rate_missing", example=example)
            sources[name] = f"flag {flag(name)}"
    return msgspec.structs.replace(rules, **rates, sources=sources)


def node_of(request: Request, files: Files, rules: Rules) -> Node:
    """The node. Flags win over the snapshot, that over the profile. Raises RefusalError as `inputs.resolve` does."""
    if request.atomics not in (None, "fast", "slow"):
        _one_of(request, "atomics", ("slow", "fast"))
    name = source_name(request)
    given = (request.gpus_per_node, request.nvlink_gbs, request.rdma_gbs, request.sms_on_device, request.memory_bytes)
    key = ("node", *given, request.atomics, request.max_qp, request.hardware, name, rules.name)
    known = files.memo.get(key)
    if known is None:
        flags = Flags(
            gpus_per_node=request.gpus_per_node,
            nvlink_gbs=request.nvlink_gbs,
            rdma_gbs=request.rdma_gbs,
            device_sms=request.sms_on_device,
            memory_bytes=request.memory_bytes,
            fast_atomics=None if request.atomics is None else request.atomics == "fast",
            max_qp=request.max_qp,
        )
        profile = request.hardware or (None if name else DEFAULT_HARDWARE)
        found = files.readings[name] if name else None
        known = resolve(flags, hardware(profile) if profile else None, found, rules)
        files.memo[key] = known
    return known


def gpu_of(request: Request, files: Files) -> Hardware | None:
    """What is known of the request's kind of GPU, as `inputs.resolve` finds it."""
    name = source_name(request)
    by_name = hardware_of_gpu(files.readings[name].gpu_name) if name and files.readings[name].gpu_name else None
    profile = request.hardware or (None if name else DEFAULT_HARDWARE)
    return by_name or (hardware(profile) if profile else None)


def fabric_of(request: Request, files: Files) -> str:
    """What is between nodes: efa, rdma, or '' where a snapshot or profile names none."""
    name = source_name(request)
    if name and files.readings[name].efa:
        return "efa"
    profile = request.hardware or (None if name else DEFAULT_HARDWARE)
    if profile is None:
        return "" if isinstance(files.readings[name].values["nics_per_gpu"].value, Absent) else "rdma"
    nic = hardware(profile).nic
    return "" if nic is None else "efa" if "EFA" in nic.title else "rdma"


def _layout(request: Request, nodes: int, gpus: int, experts: int) -> Layout | None:
    """DeepInfer's layout, where a flag of it is given."""
    if request.cp is None and request.redundant_experts is None and request.steps_per_second is None:
        return None
    redundant = request.redundant_experts
    fields = {} if redundant is None else {"redundant_experts": redundant}
    return plan_layout(
        LayoutRequest(nodes=nodes, visible_devices=gpus, experts=experts, cp=value(request, "cp"), **fields)
    )


def told(request: Request, field: str) -> str:
    """Where the value of a flag comes from."""
    if getattr(request, field) is not None:
        return f"flag {flag(field)}"
    if request.preset is not None and field in FROM_PRESET:
        return f"preset {request.preset}: {PRESETS[request.preset].source}"
    return "default"


def replaced(found: Settled, **changes: Any) -> Settled:  # noqa: ANN401 - any field's
    """`found` with fields changed."""
    return msgspec.structs.replace(found, **changes)


__all__ = ["DEFAULTS", "Calibration", "Files", "Settled", "node_of", "replaced", "rules_of", "settled", "told", "value"]
