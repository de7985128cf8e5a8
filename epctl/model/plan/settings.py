"""Settings for DeepEP, NCCL, SGLang and vLLM that follow from a plan: variables and arguments that these programs really have."""

from __future__ import annotations

from msgspec import Struct

from epctl.model.plan.types import EpFamily, PlanReport

_DEEPEP = "https://github.com/deepseek-ai/DeepEP (deep_ep/buffers/ep.py)"
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_SGLANG = "https://github.com/sgl-project/sglang/pull/29525"
_VLLM = "https://docs.vllm.ai/en/latest/serving/expert_parallel_deployment/"
MNNVL_GPUS = 9
"""More GPUs in one NVLink domain than a node holds: several trays of a rack share it."""


class Setting(Struct, frozen=True):
    """One line. argument: it is no variable, but what a program or a call is given."""

    program: str
    line: str
    why: str
    argument: bool = False


SOURCES = {"DeepEP": _DEEPEP, "NCCL": _NCCL, "SGLang": _SGLANG, "vLLM": _VLLM}
"""Program → where its settings are documented."""


def settings(report: PlanReport, ep: EpFamily) -> tuple[Setting, ...]:
    """In the order DeepEP, NCCL, SGLang, vLLM."""
    return (*_deepep(report, ep), *_nccl(report, ep), *_sglang(report, ep), *_vllm(report, ep))


def _value(report: PlanReport, name: str) -> float | int | bool | str:
    return report.inputs[name].value


def _between_nodes(ep: EpFamily) -> bool:
    return ep.physical_domain.rdma_ranks > 1


def _deepep(report: PlanReport, ep: EpFamily) -> list[Setting]:
    tokens, hidden, topk = (_value(report, name) for name in ("tokens", "hidden", "topk"))
    hybrid, fp8 = ep.mode == "hybrid", _value(report, "dtype") == "fp8"
    reduction, overlap = bool(_value(report, "multiple_reduction")), bool(_value(report, "overlap"))
    if _between_nodes(ep):
        gin = Setting("DeepEP", "unset EP_DISABLE_GIN", "ranks of other nodes are reached by GIN alone")
    else:
        why = "one NVLink domain: no byte crosses RDMA, and 2.5.0 asserts that GDAKI is there unless this is set"
        gin = Setting("DeepEP", "export EP_DISABLE_GIN=1", why)
    sizes = f"num_max_tokens_per_rank={tokens}, hidden={hidden}, num_topk={topk}, use_fp8_dispatch={fp8}"
    modes = f"allow_hybrid_mode={hybrid}, allow_multiple_reduction={reduction}, prefer_overlap_with_compute={overlap}"
    by_mode = f"{ep.mode} mode allocates {ep.qps.allocated} QPs to each peer; the buffer takes {ep.buffer.buffer_bytes} bytes a rank"
    rates = f"rdma_gbs={_value(report, 'rdma_gbs'):g}, nvlink_gbs={_value(report, 'nvlink_gbs'):g}"
    experts = _value(report, "experts")
    found = [
        gin,
        Setting("DeepEP", f"EPBuffer(group, {sizes}, {modes})", by_mode, argument=True),
        Setting(
            "DeepEP",
            f"buffer.dispatch(…, num_sms={ep.num_sms}, num_qps={ep.qps.used})",
            f"{ep.num_sms} SMs by the rules {ep.rules}; {ep.sms_left} are left for GEMMs; combine takes the handle's count",
            argument=True,
        ),
        Setting(
            "DeepEP",
            f"buffer.get_theoretical_num_sms({experts}, {topk}, {rates})",
            "the same question to DeepEP itself; given rates keep it from dividing by a rate that it failed to detect",
            argument=True,
        ),
    ]
    if report.inputs["max_qp"].value and ep.qps.allocated not in (
        ep.allocated_qps.fast_atomics,
        ep.allocated_qps.slow_atomics,
    ):
        line = f"EPBuffer(…, num_allocated_qps={ep.qps.allocated})"
        found.append(Setting("DeepEP", line, "asked for with --contexts", argument=True))
    return found


def _nccl(report: PlanReport, ep: EpFamily) -> list[Setting]:
    found = [
        Setting("NCCL", "export NCCL_CUMEM_ENABLE=1", "the buffer is a window of symmetric memory, which needs cuMem")
    ]
    if ep.physical_domain.nvlink_ranks >= MNNVL_GPUS:
        why = f"{ep.physical_domain.nvlink_ranks} GPUs share one NVLink domain across hosts (0 would split it)"
        found.append(Setting("NCCL", "export NCCL_MNNVL_ENABLE=1", why))
    if not _between_nodes(ep):
        return found
    if report.fabric == "efa":
        found.append(
            Setting(
                "NCCL",
                "export NCCL_GIN_TYPE=5",
                "EFA-GDA, for Amazon's fork of DeepEP (2.5.0 itself has GDAKI alone); unset, NCCL takes its CPU proxy",
            )
        )
        found.append(
            Setting(
                "NCCL", "export NCCL_SYM_GIN_KERNELS_ENABLE=0", "NCCL's own symmetric GIN kernels do not run on type 5"
            )
        )
    else:
        found.append(
            Setting("NCCL", "export NCCL_GIN_TYPE=3", "GDAKI: the one path that DeepEP 2.5.0 has between nodes")
        )
    if ep.mode == "direct":
        why = "direct mode connects every rank with every rank; 0 would leave the rails alone"
        found.append(Setting("NCCL", "unset NCCL_CROSS_NIC", why))
    return found


def _sglang(report: PlanReport, ep: EpFamily) -> list[Setting]:
    redundant = _redundant(ep)
    more = f" --ep-num-redundant-experts {redundant}" if redundant else ""
    line = f"--ep-size {ep.num_ranks} --moe-a2a-backend deepep_v2 --deepep-v2-mode {ep.mode}{more}"
    name = "SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
    why = f"sizes the buffer ({ep.buffer.buffer_bytes} bytes a rank in 2.5's layout); prefill chunks must not be larger"
    return [
        Setting("SGLang", f"export {name}={_value(report, 'tokens')}", why),
        Setting("SGLang", line, f"{ep.num_ranks} ranks, {ep.mode}", argument=True),
    ]


def _vllm(report: PlanReport, ep: EpFamily) -> list[Setting]:
    hybrid, overlap = int(ep.mode == "hybrid"), int(bool(_value(report, "overlap")))
    reduction = int(bool(_value(report, "multiple_reduction")))
    redundant = _redundant(ep)
    more = f" --enable-eplb --eplb-config '{{\"num_redundant_experts\": {redundant}}}'" if redundant else ""
    line = f"--enable-expert-parallel --all2all-backend deepep_v2 --data-parallel-size {ep.num_ranks}"
    line += f" --max-num-batched-tokens {_value(report, 'tokens')}{more}"
    how = f"{ep.num_sms} SMs, {ep.sms_left} left for GEMMs" if overlap else f"nothing runs beside it: {ep.num_sms} SMs"
    return [
        Setting("vLLM", f"export VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE={hybrid}", f"the plan is {ep.mode}"),
        Setting("vLLM", f"export VLLM_DEEPEP_V2_PREFER_OVERLAP={overlap}", how),
        Setting(
            "vLLM",
            f"export VLLM_DEEPEP_V2_ALLOW_MULTIPLE_REDUCTION={reduction}",
            "1: partial sums are rounded on the way, for fewer bytes",
        ),
        Setting("vLLM", line, "one rank a GPU; the buffer is sized by the batched tokens", argument=True),
    ]


def _redundant(ep: EpFamily) -> int:
    return ep.layout.redundant_experts if hasattr(ep.layout, "redundant_experts") else 0
