"""DeepInfer's layout and throughput accounting, and the presets."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.model.deepinfer import DecodeRequest, LayoutRequest, decode_rate, plan_layout
from epctl.model.presets import PRESETS, preset
from epctl.model.refusal import RefusalError


def test_the_articles_example() -> None:
    """64 requests and draft length 5 are credited as 384 tokens a step."""
    rate = decode_rate(DecodeRequest(steps_per_second=50.0, requests=64, draft_length=5))
    assert (rate.tokens_per_step, rate.tokens_per_second_per_gpu, rate.full_credit) == (384, 19200, True)
    assert [step.value for step in rate.steps] == [1.0, 6, 384, 19200, 19200]
    assert "full credit" in rate.steps[0].formula


def test_measured_acceptance_and_cp_cut_the_credit() -> None:
    rate = decode_rate(DecodeRequest(steps_per_second=50.0, requests=64, draft_length=5, acceptance=0.5, cp=4))
    assert rate.tokens_per_second_per_gpu == 50 * 64 * 3.5 / 4
    assert rate.per_request_tokens_per_second == 50 * 3.5
    assert not rate.full_credit
    assert "measured acceptance 0.5" in rate.steps[0].formula


def test_redundant_experts_are_rounded_up() -> None:
    layout = plan_layout(LayoutRequest(nodes=9, visible_devices=8, experts=256, cp=4))
    assert (layout.ep_size, layout.attention_groups) == (72, 18)
    assert (layout.redundant_experts, layout.total_experts, layout.experts_per_rank) == (32, 288, 4)
    other = plan_layout(LayoutRequest(nodes=8, visible_devices=4, experts=250))
    assert (other.redundant_experts, other.total_experts) == (38, 288)
    assert [step.name for step in other.steps][-1] == "experts per rank"


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 2048), st.integers(0, 512))
def test_layouts_keep_their_promises(nodes: int, devices: int, experts: int, redundant: int) -> None:
    layout = plan_layout(
        LayoutRequest(nodes=nodes, visible_devices=devices, experts=experts, redundant_experts=redundant)
    )
    assert layout.ep_size == nodes * devices == layout.attention_groups
    assert layout.total_experts == experts + layout.redundant_experts == layout.experts_per_rank * layout.ep_size
    assert redundant <= layout.redundant_experts < redundant + layout.ep_size


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 2048))
def test_cp_divides_or_a_divisor_is_named(nodes: int, devices: int, cp: int) -> None:
    request = LayoutRequest(nodes=nodes, visible_devices=devices, experts=256, cp=cp)
    if nodes * devices % cp == 0:
        assert plan_layout(request).attention_groups * cp == nodes * devices
        return
    with pytest.raises(RefusalError) as caught:
        plan_layout(request)
    assert caught.value.code == "cp_not_divisor"
    near = int(caught.value.todo.removeprefix("give --cp "))
    assert plan_layout(LayoutRequest(nodes=nodes, visible_devices=devices, experts=256, cp=near))


@given(st.floats(0.1, 1e4), st.integers(1, 1024), st.integers(0, 16), st.floats(0, 1), st.sampled_from((1, 2, 4)))
def test_throughput_is_between_no_draft_and_full_credit(
    steps: float, requests: int, draft: int, acceptance: float, cp: int
) -> None:
    fields: dict[str, Any] = {"steps_per_second": steps, "requests": requests, "cp": cp}
    none = decode_rate(DecodeRequest(**fields))
    full = decode_rate(DecodeRequest(**fields, draft_length=draft))
    measured = decode_rate(DecodeRequest(**fields, draft_length=draft, acceptance=acceptance))
    low, high = none.tokens_per_second_per_gpu, full.tokens_per_second_per_gpu
    assert low * (1 - 1e-12) <= measured.tokens_per_second_per_gpu <= high * (1 + 1e-12)
    assert measured.steps[-1].value == measured.tokens_per_second_per_gpu


@pytest.mark.parametrize(
    ("changes", "code", "hint"),
    [
        ({"nodes": 0}, "non_positive_argument", "--nodes 1"),
        ({"nodes": -1}, "non_positive_argument", "--nodes 1"),
        ({"visible_devices": 0}, "non_positive_argument", "8"),
        ({"experts": 0}, "non_positive_argument", "256"),
        ({"experts": 10**12}, "absurd_argument", "256"),
        ({"nodes": 10**12}, "absurd_argument", "--nodes 1"),
        ({"nodes": 60_000, "visible_devices": 8}, "absurd_argument", "--nodes 8192"),
        ({"cp": 0}, "non_positive_argument", "--cp 1"),
        ({"cp": 3}, "cp_not_divisor", "--cp 2"),
        ({"redundant_experts": -1}, "non_positive_argument", "32"),
    ],
)
def test_layout_refusals_name_a_value_that_would_do(changes: dict[str, Any], code: str, hint: str) -> None:
    with pytest.raises(RefusalError) as caught:
        plan_layout(LayoutRequest(**{"nodes": 2, "visible_devices": 8, "experts": 256, **changes}))
    assert caught.value.code == code
    assert hint in caught.value.todo


@pytest.mark.parametrize(
    ("changes", "code", "hint"),
    [
        ({"steps_per_second": 0.0}, "non_positive_argument", "50"),
        ({"steps_per_second": math.nan}, "non_positive_argument", "50"),
        ({"steps_per_second": math.inf}, "non_positive_argument", "50"),
        ({"steps_per_second": 1e9}, "absurd_argument", "50"),
        ({"requests": 0}, "non_positive_argument", "64"),
        ({"requests": 10**9}, "absurd_argument", "64"),
        ({"draft_length": -1}, "non_positive_argument", "5"),
        ({"draft_length": 10**6}, "absurd_argument", "5"),
        ({"cp": 0}, "non_positive_argument", "1"),
        ({"acceptance": 1.5}, "acceptance_out_of_range", "0.7"),
        ({"acceptance": math.nan}, "acceptance_out_of_range", "0.7"),
    ],
)
def test_decode_refusals_name_a_value_that_would_do(changes: dict[str, Any], code: str, hint: str) -> None:
    with pytest.raises(RefusalError) as caught:
        decode_rate(DecodeRequest(**{"steps_per_second": 50.0, "requests": 64, **changes}))
    assert caught.value.code == code
    assert hint in caught.value.todo


def test_presets() -> None:
    assert (PRESETS["decode"].tokens, PRESETS["decode"].latency) == (128, "low-latency")
    assert (preset("prefill").tokens, preset("prefill").latency) == (4096, "throughput")
    assert all(entry.name == name and entry.source for name, entry in PRESETS.items())
    with pytest.raises(RefusalError) as caught:
        preset("training")
    assert caught.value.todo == "give decode"
