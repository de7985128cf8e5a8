"""Advice: each sentence follows from the plan and its times."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from epctl.model.advice import advise, best_mode
from epctl.model.ep import plan_ep
from epctl.model.rules import RULES
from epctl.model.timing import stage_times
from epctl.model.timing_types import Workload
from tests.support.planning import h800, node_of, request_of

NODE = node_of("h200-ndr400")


def told(
    num_nodes: int,
    gpus_per_node: int,
    mode: str,
    tokens: int = 4096,
    rules: str = "deepep-2.5",
    sends: Literal["rank", "selection"] = "rank",
    **changes: Any,  # noqa: ANN401
) -> tuple[str, ...]:
    request = request_of(NODE, num_nodes, gpus_per_node, mode, **changes)
    return advise(request, Workload(tokens=tokens, sends=sends), NODE, RULES[rules])


def test_nvlink_alone_suffices_within_a_node() -> None:
    text = told(1, 8, "hybrid")[0]
    assert text.startswith("NVLink alone suffices: all 8 ranks")
    assert told(1, 1, "direct")[0].startswith("Direct: there is one rank")


def test_hybrid_over_several_nodes_of_many_gpus() -> None:
    text = told(4, 8, "direct")[0]
    assert text.startswith("Hybrid: ")
    assert "crosses RDMA 2.71 times, 5.45 times direct" in text


def test_relaying_gains_nothing_with_one_gpu_a_node() -> None:
    text = told(4, 1, "hybrid", rules="epctl")[0]
    assert text.startswith("Direct: ")
    assert "relaying saves no RDMA" in text


def test_the_mode_is_the_faster_one_that_can_run() -> None:
    for num_nodes, gpus in ((2, 8), (4, 1), (8, 8), (4, 2)):
        for tokens in (16, 128, 4096):
            for rules in RULES.values():
                request, work = request_of(NODE, num_nodes, gpus, "direct"), Workload(tokens=tokens)
                taken = {
                    mode: sum(
                        time.us
                        for time in stage_times(
                            plan_ep(msgspec.structs.replace(request, mode=mode), rules), work, NODE, rules=rules
                        )
                    )
                    for mode in ("direct", "hybrid")
                }
                assert best_mode(request, work, NODE, rules) == min(taken, key=lambda mode: taken[mode])
    assert best_mode(request_of(NODE, 64, 8, "hybrid", num_experts=512), Workload(tokens=4096), NODE) == "direct"
    assert best_mode(request_of(NODE, 1, 8, "hybrid"), Workload(tokens=4096), NODE) == "direct"


def test_hybrid_past_its_kernels_is_not_advised() -> None:
    texts = told(64, 8, "hybrid", num_experts=512)
    assert texts[0] == "Direct: hybrid kernels cannot run this: two-level kernels take at most 32 nodes, one a lane."
    assert texts[-1].startswith("These kernels cannot run this plan: two-level")


def test_low_latency_sends_are_direct() -> None:
    assert told(4, 8, "direct", tokens=128, sends="selection")[0].startswith("Direct: low-latency sends")
    request = request_of(NODE, 4, 8, "direct")
    assert best_mode(request, Workload(tokens=128, sends="selection"), NODE) == "direct"


@pytest.mark.parametrize(("tokens", "word"), [(16, "Low latency: "), (4096, "Bandwidth decides: ")])
def test_latency_or_throughput_by_what_takes_longer(tokens: int, word: str) -> None:
    assert told(1, 8, "direct", tokens=tokens)[1].startswith(word)


def test_the_turning_point_is_one() -> None:
    text = told(1, 8, "direct", tokens=4096)[1]
    turn = int(text.split("below about ")[1].split()[0])
    assert told(1, 8, "direct", tokens=turn // 2)[1].startswith("Low latency: ")
    assert told(1, 8, "direct", tokens=turn * 2)[1].startswith("Bandwidth decides: ")


def test_what_binds() -> None:
    assert "RDMA binds both stages" in told(4, 8, "hybrid")[2]
    assert "What binds: dispatch by NVLink" in told(1, 8, "hybrid")[2]
    node = h800()
    texts = advise(request_of(node, 2, 8, "hybrid"), Workload(tokens=4096), node)
    assert texts[2].startswith("NVLink binds across nodes (dispatch by NVLink, combine by NVLink)")
    assert "latency" in told(1, 8, "direct", tokens=1)[2]


def test_wasted_sms_are_counted() -> None:
    text = told(4, 8, "direct", tokens=4096)[3]
    assert text.startswith("4 SMs would keep RDMA fed")
    assert "the other 20 of the planned 24 wait for it" in text
    idle = told(4, 8, "hybrid", prefer_overlap=False)[3]
    assert "of the planned 64 wait for it" in idle
    assert "more than the planned 8 would wait for it" in told(4, 8, "hybrid")[3]


def test_too_few_sms_are_told() -> None:
    text = told(1, 8, "direct", device_sms=4)[3]
    assert text.startswith("SMs bind: 4 move less than NVLink carries, and 10 would keep up with it")


def test_a_release_that_looks_past_rdma_is_told() -> None:
    assert any("plan for NVLink, but RDMA takes longer" in text for text in told(4, 8, "direct"))
    assert not any("takes longer: their" in text for text in told(4, 8, "direct", rules="epctl"))


def test_no_sentence_has_two_lines() -> None:
    for num_nodes, gpus in ((1, 1), (1, 8), (2, 8), (4, 1)):
        for mode in ("direct", "hybrid"):
            for rules in RULES:
                for text in told(num_nodes, gpus, mode, rules=rules):
                    assert "\n" not in text
                    assert text.endswith(".")


def test_spare_sms_offered_to_gemms_where_nothing_runs_beside_the_call() -> None:
    request = request_of(NODE, 1, 8, "direct", prefer_overlap=False)
    alone = " ".join(advise(request, Workload(tokens=128), NODE, overlap=False))
    assert "GEMMs" not in alone
    assert "would keep" not in alone
    assert "measure before you take fewer" in " ".join(told(1, 8, "direct"))


def test_modes_compared_by_the_mean_rank_of_a_skewed_gate() -> None:
    request = request_of(NODE, 4, 8, "direct")
    work = Workload(tokens=4096, slow_rank=4.0, slow_node=1.2)
    text = advise(request, work, NODE)[0]
    times = {
        mode: sum(t.us_slow_rank for t in stage_times(plan_ep(request_of(NODE, 4, 8, mode)), work, NODE))
        for mode in ("direct", "hybrid")
    }
    assert f"about {times['hybrid']:.0f} us, against {times['direct']:.0f} us direct (the busiest rank's)" in text
