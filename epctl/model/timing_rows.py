"""Bytes of one copy of a token, as DeepEP counts it and as it travels, and what a workload may be."""

from __future__ import annotations

from epctl.model.buffers import token_bytes
from epctl.model.ep_types import EpPlan
from epctl.model.refusal import RefusalError
from epctl.model.rules import Layout
from epctl.model.storage import SF_PACK_BYTES
from epctl.model.timing_types import Stage, Workload

SCALE_HIDDEN = 128
"""FP8 values that share a float32 scale. Source: deepseek-ai/DeepEP, tests/test_internode.py, fp8_factor (1 + 4 / 128)."""
SELECTION_METADATA_BYTES = 16
"""What V1's low-latency dispatch puts before a row, for the source's index.
Source: 7,168 + 224 + 16 bytes a selection, as the notes of published_results.json count it (not read in the kernels)."""
SOURCE_INDEX_BYTES = 4
MAX_TOKENS, MAX_HIDDEN = 1 << 22, 1 << 18


def copy_bytes(work: Workload, stage: Stage) -> int:
    """Values and scales of one copy: what DeepEP counts as its bytes (V2 adds top-k indices and weights, 1.3 % of an FP8 row)."""
    if stage == "combine" or work.dtype == "bf16":
        return work.hidden * 2
    return work.hidden + -(-work.hidden // SCALE_HIDDEN) * SF_PACK_BYTES


def row_bytes(work: Workload, stage: Stage, layout: Layout) -> int:
    """One copy as it travels, with metadata.

    selection: 16 bytes before dispatch's row, none on combine's (V1 low latency). staged: a slot with scales, top-k indices and weights and
    source, each aligned (deepinfer-ep 2.5.0, layout/ep/token.cuh). write_once: top-k indices and weights (4 bytes each) and the source's
    index with dispatch, weights with combine (epctl's kernels).
    """
    payload = copy_bytes(work, stage)
    if work.sends == "selection":
        return payload + (SELECTION_METADATA_BYTES if stage == "dispatch" else 0)
    if layout == "write_once":
        return payload + (work.topk * 8 + SOURCE_INDEX_BYTES if stage == "dispatch" else work.topk * 4)
    if stage == "combine":
        return token_bytes(work.hidden, 2, 0, work.topk, metadata=False)
    fp8 = work.dtype == "fp8"
    packs = -(-work.hidden // SCALE_HIDDEN) if fp8 else 0
    return token_bytes(work.hidden, 1 if fp8 else 2, packs, work.topk, metadata=True)


def check_workload(plan: EpPlan, work: Workload) -> None:
    for name, flag, value, most, example in (
        ("the number of tokens per rank", "--tokens", work.tokens, MAX_TOKENS, 4096),
        ("hidden", "--hidden", work.hidden, MAX_HIDDEN, 7168),
    ):
        if value < 1:
            what, why = f"{name} is {value}", "a call moves at least one value"
            raise RefusalError("non_positive_argument", what, why, f"give {flag} {example}")
        if value > most:
            what, why = f"{name} is {value}", f"no call is that large; at most {most} are taken"
            raise RefusalError("absurd_argument", what, why, f"give {flag} {example}")
    if work.dtype not in ("bf16", "fp8"):
        why = "dispatch moves bf16, or fp8 with one float32 scale for 128 values"
        raise RefusalError("unknown_dtype", f"the type is {work.dtype!r}", why, "give --dtype fp8")
    if work.sends not in ("rank", "selection"):
        why = "a token is sent once a rank, or once a selection"
        raise RefusalError("unknown_sends", f"sends is {work.sends!r}", why, "give rank")
    if work.topk < plan.expected_distinct_ranks - 1e-9:
        what = f"top-{work.topk} tokens are to reach {plan.expected_distinct_ranks:.3f} ranks"
        why = "the plan was made for another top-k; a token reaches at most one rank a selection"
        least = int(plan.expected_distinct_ranks) + 1
        raise RefusalError("topk_mismatch", what, why, f"give the plan's --topk, {least} or more")
    ranks = plan.num_ranks
    if not 1.0 <= work.slow_rank <= ranks:
        what = f"the busiest rank is to get {work.slow_rank} times the mean"
        why = f"the largest of {ranks} loads is at least their mean and at most their sum"
        raise RefusalError("slow_rank_out_of_range", what, why, f"give 1.0 to {ranks}")
    nodes = plan.physical_domain.rdma_ranks
    if not 1.0 <= work.slow_node <= nodes:
        what = f"the busiest node is to get {work.slow_node} times the mean"
        why = f"the largest of {nodes} loads is at least their mean and at most their sum"
        raise RefusalError("slow_node_out_of_range", what, why, f"give 1.0 to {nodes}")
    if work.sends == "selection" and plan.logical_domain.scaleout_ranks > 1:
        what, why = "low-latency sends over a two-level plan", "one send a selection goes straight to the expert's rank"
        raise RefusalError("low_latency_not_direct", what, why, "give --mode direct")
