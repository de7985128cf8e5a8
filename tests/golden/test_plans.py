"""The golden plans: every case, every key of its expectation, through the public functions of epctl.model.

Tolerances are those of the file's own meta: integers exactly, floats to 1e-9; any of accept_num_sms where a float's last bit decides;
Monte-Carlo means within 5 standard errors. A key that no comparison knows fails.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from epctl.model.bucket import plan_bucket
from epctl.model.buffers import EpBufferRequest, plan_ep_buffer
from epctl.model.channels import plan_hybrid_channels
from epctl.model.engram import engram_storage, plan_engram
from epctl.model.ep import plan_ep
from epctl.model.ep_types import EpRequest
from epctl.model.lb import plan_lb
from epctl.model.refusal import RefusalError
from epctl.model.rules import RULES
from epctl.model.spread import gate_named, spread_of_gate
from epctl.model.storage import plan_pp_storage, plan_workspace
from tests.support.golden import CASES, GOLDEN, REL, accepted, differences

STANDARD_ERRORS = 5

PLANNERS: dict[str, Callable[..., Any]] = {
    "ep": lambda **given: plan_ep(EpRequest(**given)),
    "lb": plan_lb,
    "bucket": plan_bucket,
    "engram_config": plan_engram,
    "engram_storage": engram_storage,
    "ep_buffer": lambda **given: plan_ep_buffer(EpBufferRequest(**given)),
    "hybrid_channels": plan_hybrid_channels,
    "pp_storage": plan_pp_storage,
    "workspace": plan_workspace,
}


def planned(family: str, given: dict[str, Any]) -> dict[str, Any]:
    """The plan as JSON would carry it, or the refusal in the golden file's words."""
    try:
        found: dict[str, Any] = json.loads(msgspec.json.encode(PLANNERS[family](**given)))
    except RefusalError as refusal:
        assert refusal.what
        assert refusal.why
        assert refusal.todo
        found = {"status": "error", "error_code": refusal.code, "deepep_2_5_0": refusal.deepep_2_5_0}
    return found


@pytest.mark.parametrize("case_id", [case_id for case_id, case in CASES.items() if case["family"] != "routing"])
def test_plan_matches_golden_case(case_id: str) -> None:
    case = CASES[case_id]
    given, expected = case["input"], case["expect"]
    found = planned(case["family"], given)
    if expected["status"] == "ok" and case["family"] == "ep":
        expected = accepted(found, expected, given["mode"])
        july = accepted(found["july_2026_release"], expected["july_2026_release"], given["mode"])
        expected = {**expected, "july_2026_release": july}
    assert differences(found, expected, case_id) == []


@pytest.mark.parametrize(
    "case_id",
    [case_id for case_id, case in CASES.items() if case["family"] == "ep" and case["expect"]["status"] == "ok"],
)
def test_july_rules_give_the_july_counts(case_id: str) -> None:
    case = CASES[case_id]
    plan = plan_ep(EpRequest(**case["input"]), RULES["deepep-2"])
    found = json.loads(msgspec.json.encode({"num_sms": plan.num_sms, "num_qps": plan.num_qps}))
    expected = accepted(found, case["expect"]["july_2026_release"], case["input"]["mode"])
    assert differences(found, expected, case_id) == []


ROUTING_KEYS = {"status", "mean", "standard_error", "closed_form", "closed_form_kind", "z", "relative_gap", "tokens"}


@pytest.mark.parametrize("case_id", [case_id for case_id, case in CASES.items() if case["family"] == "routing"])
def test_routing_matches_golden_case(case_id: str) -> None:
    case = CASES[case_id]
    given, expected = case["input"], case["expect"]
    assert set(expected) <= ROUTING_KEYS
    assert set(given) == {"routing", "score_law", "experts", "topk", "groups_hit_of"}
    law = "" if given["score_law"] == "any" else f":{given['score_law']}"
    gate = gate_named(given["routing"] + law, given["experts"])
    found = spread_of_gate(gate, given["experts"], given["groups_hit_of"], given["topk"], tokens=20_000, seed=1)

    assert expected["status"] == "ok"
    assert math.isclose(found.closed_form, expected["closed_form"], rel_tol=REL)
    assert found.closed_form_kind == expected["closed_form_kind"]
    assert found.tokens == 20_000
    both = math.hypot(found.standard_error, expected["standard_error"])
    assert abs(found.mean - expected["mean"]) < STANDARD_ERRORS * both
    # The spread of one token is the same on both sides; the standard error shrinks with the root of the tokens.
    per_token = found.standard_error * math.sqrt(found.tokens)
    assert math.isclose(per_token, expected["standard_error"] * math.sqrt(expected["tokens"]), rel_tol=0.1)
    if "z" in expected:
        assert math.isclose(
            expected["z"], (expected["mean"] - found.closed_form) / expected["standard_error"], rel_tol=1e-6
        )
        assert abs(found.z) < STANDARD_ERRORS
    if "relative_gap" in expected:
        gap = expected["relative_gap"]
        assert math.isclose(gap, (expected["mean"] - found.closed_form) / found.closed_form, rel_tol=REL)
        assert abs(found.relative_gap - gap) < STANDARD_ERRORS * both / found.closed_form
    assert ("z" in expected) == (found.z is not msgspec.UNSET)
    assert ("relative_gap" in expected) == (found.relative_gap is not msgspec.UNSET)


def test_file_is_whole() -> None:
    assert len(CASES) == GOLDEN["meta"]["cases"] == 173
    families = [case["family"] for case in CASES.values()]
    assert {name: families.count(name) for name in families} == GOLDEN["meta"]["by_family"]


def test_rules_hold_the_golden_defaults() -> None:
    defaults, july = GOLDEN["meta"]["defaults"], GOLDEN["meta"]["july_2026_defaults"]
    now, then = RULES["deepep-2.5"], RULES["deepep-2"]
    assert (now.sm_read_gbs, now.sm_write_gbs, now.margin) == (
        defaults["sm_read_gbs"],
        defaults["sm_write_gbs"],
        defaults["margin"],
    )
    assert (now.sm_step, now.min_sms, now.no_overlap_sms) == (
        defaults["sm_step"],
        defaults["min_sms"],
        defaults["no_overlap_floor"],
    )
    allocated = {"hybrid_fast": now.hybrid_qps_fast, "hybrid_slow": now.hybrid_qps_slow, "direct": now.direct_qps}
    assert allocated == defaults["allocated_qps"]
    assert now.direct_qp_cap == defaults["direct_qp_cap"]
    assert (then.sm_read_gbs, then.sm_write_gbs, then.margin) == (
        july["sm_read_gbs"],
        july["sm_write_gbs"],
        july["margin"],
    )
    assert (then.sm_step, then.combine_modelled, then.even_device_cap) == (
        july["sm_step"],
        july["combine_modelled"],
        False,
    )
