"""The golden plans, and how a plan is compared with one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from epctl.model.rules import RULES

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "plans.json").read_text("utf-8"))
CASES = {case["id"]: case for case in GOLDEN["cases"]}
REL = 1e-9


def differences(found: object, expected: object, path: str) -> list[str]:
    """Where `found` is not what is expected; keys that `found` has beyond are fine."""
    if isinstance(expected, dict):
        if not isinstance(found, dict):
            return [f"{path}: {found!r} is no object"]
        missing = [f"{path}.{key}: missing" for key in expected if key not in found]
        known = [key for key in expected if key in found]
        return missing + [text for key in known for text in differences(found[key], expected[key], f"{path}.{key}")]
    if isinstance(expected, float):
        close = isinstance(found, (int, float)) and math.isclose(found, expected, rel_tol=REL, abs_tol=0.0)
        return [] if close else [f"{path}: {found!r}, expected {expected!r}"]
    same = type(found) is type(expected) and found == expected
    return [] if same else [f"{path}: {found!r}, expected {expected!r}"]


def accepted(found: dict[str, Any], expected: dict[str, Any], mode: str) -> dict[str, Any]:
    """`expected` with the count that was found, where accept_num_sms allows it; the QPs follow the count."""
    if "accept_num_sms" not in expected:
        return expected
    assert found["num_sms"] in expected["accept_num_sms"]
    rules = RULES["deepep-2.5"]
    wanted = (
        found["num_sms"] * rules.hybrid_qps_per_sm + 1
        if mode == "hybrid"
        else min(found["num_sms"], rules.direct_qp_cap)
    )
    caps = (rules.hybrid_qps_fast, rules.hybrid_qps_slow) if mode == "hybrid" else (rules.direct_qps, rules.direct_qps)
    qps = {"fast_atomics": min(wanted, caps[0]), "slow_atomics": min(wanted, caps[1])}
    rest = {key: value for key, value in expected.items() if key != "accept_num_sms"}
    return {**rest, "num_sms": found["num_sms"], "num_qps": qps}
