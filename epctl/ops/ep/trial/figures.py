"""What an expert-parallel call moves, what bounds it, and how long the plan says it takes. Pure arithmetic."""

from __future__ import annotations

from functools import lru_cache

from msgspec import structs

from epctl.core.op import Case, Hardware, Layout, Limit, Traffic
from epctl.model.ep import plan_ep
from epctl.model.ep_types import EpRequest
from epctl.model.gate import expected_distinct
from epctl.model.hardware import Hardware as Profile
from epctl.model.hardware import hardware as profile_named
from epctl.model.hardware import hardware_of_gpu, measured, measured_node
from epctl.model.inputs import Flags, Node, resolve
from epctl.model.refusal import RefusalError
from epctl.model.rules import RULES
from epctl.model.timing import stage_times
from epctl.model.timing_types import Workload
from epctl.ops.ep.sms import theoretical_num_sms
from epctl.ops.ep.trial.cases import CACHED, COMBINE, COPYING, DISPATCH, EPCTL, STAGES
from epctl.ops.ep.trial.gates import BALANCED
from epctl.ops.ep.trial.options import BF16
from epctl.ops.link import cases as link_cases
from epctl.ops.link import limits as link_limits

BF16_BYTES = 2
SCALE_BLOCK = 128
SCALE_BYTES = 4
NVLINK_SHARE = 0.9
"""Of the nominal rate, which the plan's rules take for a link's (epctl.model.readings)."""
LIMITS = {DISPATCH: "bulk-write", CACHED: "bulk-write", COMBINE: "pull-add"}
"""The link op's kind of transfer that a stage is: rows are written to the peer, or pulled from it and added."""


def row_bytes(stage: str, dtype: str, hidden: int) -> int:
    """Values and scales of one token; indices, weights and source numbers (1 to 3 %) are not counted."""
    if stage == COMBINE or dtype == BF16:
        return hidden * BF16_BYTES
    return hidden + -(-hidden // SCALE_BLOCK) * SCALE_BYTES


def bytes_moved(stage: str, sent: int, received: int, one_row: int) -> Traffic:
    """Of a rank that has `sent` tokens for other ranks and gets `received` from them. Combine goes the other way."""
    out, into = (received, sent) if stage == COMBINE else (sent, received)
    return Traffic(nvlink_out_bytes=out * one_row, nvlink_in_bytes=into * one_row)


def _is_timed(case: Case) -> bool:
    return case.params.get("kind") in STAGES


def traffic(case: Case, layout: Layout) -> Traffic:
    """What a balanced gate makes of it on average; nothing for cases of the self-test."""
    if not _is_timed(case):
        return Traffic()
    experts, ranks = case.whole("experts"), layout.num_ranks
    if experts % ranks:
        return Traffic()
    reached = float(expected_distinct(experts, ranks, case.whole("topk")))
    copies = round(case.whole("tokens") * reached * (ranks - 1) / ranks)
    stage = case.word("stage")
    return bytes_moved(stage, copies, copies, row_bytes(stage, case.word("dtype"), case.whole("hidden")))


def limit(case: Case, layout: Layout, hardware: Hardware) -> Limit | None:
    """What SMs write over NVLink at most (dispatch), or pull and add (combine); see the link op."""
    if not _is_timed(case) or layout.num_ranks < 2 or case.params.get("overlap"):
        return None
    return link_limits.limit(link_cases.move(LIMITS[case.word("stage")], link_cases.LARGE_BYTES), hardware)


def predict(case: Case, layout: Layout, hardware: Hardware) -> float | None:
    """The plan's time of one call in µs, by the rules `epctl`, and what the case adds to it: an output that is copied, or expanded. None
    for others' calls, for gates that are not balanced, and where the links are not known."""
    params = case.params
    if not _is_timed(case) or params["by"] != EPCTL or params["gate"] != BALANCED or params["overlap"]:
        return None
    if layout.num_ranks < 2 or not hardware.nvlink_gbs:
        return None
    try:
        node = _node(layout, hardware)
        us = _call_us(case, layout, node, hardware)
    except RefusalError:
        return None
    stage = case.word("stage")
    if stage != COMBINE and (params["place"] == COPYING or params["expand"]):
        reached = float(expected_distinct(case.whole("experts"), layout.num_ranks, case.whole("topk")))
        rows = case.whole("tokens") * (case.whole("topk") if params["expand"] else reached)
        moved = rows * row_bytes(stage, case.word("dtype"), case.whole("hidden"))
        us += float(node.launch_us.value) + moved / float(node.hbm_gbs.value) / 1e3
    if stage == CACHED:
        us -= float(node.nvlink_hop_us.value)  # no counts are exchanged
    return us


def _call_us(case: Case, layout: Layout, node: Node, hardware: Hardware) -> float:
    rules = RULES["epctl"]
    experts, topk = case.whole("experts"), case.whole("topk")
    request = EpRequest(
        num_experts=experts,
        num_topk=topk,
        num_nodes=1,
        gpus_per_node=layout.num_ranks,
        mode="direct",
        nvlink_gbs=float(node.nvlink_gbs.value),
        rdma_gbs=0.0,
        device_sms=hardware.num_sms or int(node.device_sms.value),
    )
    plan = plan_ep(request, rules, explain=False)
    plan = structs.replace(plan, num_sms=case.whole("sms") or num_sms(case, layout, hardware))
    dtype = "bf16" if case.word("dtype") == BF16 else "fp8"
    work = Workload(
        tokens=case.whole("tokens"), hidden=case.whole("hidden"), topk=topk, dtype="fp8" if dtype == "fp8" else "bf16"
    )
    dispatch, combine = stage_times(plan, work, node, rules=rules, explain=False)
    return combine.us if case.word("stage") == COMBINE else dispatch.us


def num_sms(case: Case, layout: Layout, hardware: Hardware) -> int:
    """SMs of a call that leaves the choice to the buffer."""
    return theoretical_num_sms(layout.num_ranks, case.whole("experts"), case.whole("topk"), hardware.num_sms or 132)


@lru_cache(maxsize=8)
def _node(layout: Layout, hardware: Hardware) -> Node:
    """The measured machine's own figures where this is one of its kind; else the GPU's, in proportion."""
    gpu = hardware_of_gpu(layout.gpu_name) if layout.gpu_name else None
    profile: Profile | None = gpu
    mine = profile_named(measured_node())
    links = abs(hardware.nvlink_gbs - measured().link_gbs) < 1.0
    if gpu is not None and mine.gpu == gpu.gpu and mine.gpus_per_node == layout.num_ranks and links:
        return resolve(Flags(), mine, None, RULES["epctl"])
    flags = Flags(gpus_per_node=layout.num_ranks, nvlink_gbs=hardware.nvlink_gbs * NVLINK_SHARE, rdma_gbs=0.0)
    return resolve(flags, profile, None, RULES["epctl"])
