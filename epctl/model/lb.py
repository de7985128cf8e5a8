"""SMs that move expert weights and gradients of a load-balanced layer over NVLink."""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from epctl.model.refusal import rate
from epctl.model.rules import RULES, Rules


class LbPlan(Struct, frozen=True, kw_only=True):
    """The plan; the release sets no minimum and no cap here, so `over_device` says where it asks for more than there are."""

    status: Literal["ok"] = "ok"
    num_sms: int
    sm_demand: float
    """The larger of link rate over read rate and over write rate per SM."""
    over_device: bool


def plan_lb(nvlink_gbs: float, *, device_sms: int = 132, rules: Rules = RULES["deepep-2.5"]) -> LbPlan:
    """SMs for weight prefetch and gradient reduction: enough to fill NVLink (GB/s, one way), rounded up to even.

    Raises RefusalError nvlink_bandwidth_missing. Source: deepinfer-ep 2.5.0, deep_ep/buffers/ep.py, lb_get_theoretical_num_sms.
    """
    rate("the NVLink rate", nvlink_gbs, "nvlink_bandwidth_missing", example="405")
    demand = max(nvlink_gbs / rules.sm_read_gbs, nvlink_gbs / rules.sm_write_gbs)
    num_sms = even(math.ceil(demand))
    return LbPlan(num_sms=num_sms, sm_demand=demand, over_device=num_sms > device_sms)


def even(count: int) -> int:
    """`count` rounded up to an even number."""
    return -(-count // 2) * 2
