"""The constants of a planner, each with where it comes from: `--rules deepep-2.5 | deepep-2 | epctl`."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import msgspec
from msgspec import Struct

from epctl.model.refusal import RefusalError, rate

Layout = Literal["staged", "write_once"]
"""staged: the receiver copies out of (dispatch) or reduces from (combine) a staging buffer with a second kernel, as DeepEP does.
write_once: the sender writes each row where it ends up, and combine pulls; no second kernel."""

_RELEASE = "deepinfer-ep 2.5.0"
_EP = f"{_RELEASE}, deep_ep/buffers/ep.py"
_JULY = "deepseek-ai/DeepEP, deep_ep/buffers/elastic.py as of July 2026"
_MEASURED = "measured on two H200 over 18 NVLinks (478 GB/s nominal each way), rows of 14 KiB, both directions loaded"


class Rules(Struct, frozen=True, kw_only=True):
    """One planner's constants. Rates in GB/s per SM, the rest are counts; `sources` has an entry for each of them."""

    name: str
    layout: Layout
    sm_read_gbs: float
    sm_write_gbs: float
    margin: float
    """Factor on the SM demand."""
    sm_step: int
    """The count is rounded up to a multiple of this."""
    min_sms: int
    no_overlap_sms: int
    """Floor where nothing else runs on the GPU at the same time."""
    even_device_cap: bool
    """Whether the device's SM count is rounded down to even before it caps the plan."""
    combine_modelled: bool
    rdma_binds_direct: bool
    """Whether RDMA can be the link that a direct plan over several nodes is made for."""
    idle_takes_device: bool
    """Whether a plan whose link carries nothing takes every SM (else the minimum)."""
    hybrid_qps_fast: int = 65
    hybrid_qps_slow: int = 129
    direct_qps: int = 17
    direct_qp_cap: int = 9
    hybrid_qps_per_sm: int = 16
    sources: dict[str, str]

    @property
    def exact_margin(self) -> Fraction:
        """The margin as the decimal it was written as."""
        return Fraction(str(self.margin))


_QP_SOURCES = {
    "hybrid_qps_fast": f"{_EP}, EPBuffer.__init__: allocation for NICs of device id MT4131 (fast atomics)",
    "hybrid_qps_slow": f"{_EP}, EPBuffer.__init__: allocation for other NICs",
    "direct_qps": f"{_EP}, EPBuffer.__init__",
    "direct_qp_cap": f"{_EP}, get_theoretical_num_qps: 8 for data and 1 to notify, against doorbell cost",
    "hybrid_qps_per_sm": f"{_EP}, get_theoretical_num_qps: one for each channel, and 1 to notify",
}
_SMS = f"{_EP}, get_theoretical_num_sms"
_JULY_SMS = f"{_JULY}, get_theoretical_num_sms"

RULES: dict[str, Rules] = {
    "deepep-2.5": Rules(
        name="deepep-2.5",
        layout="staged",
        sm_read_gbs=180.0,
        sm_write_gbs=45.0,
        margin=1.3,
        sm_step=4,
        min_sms=4,
        no_overlap_sms=64,
        even_device_cap=True,
        combine_modelled=True,
        rdma_binds_direct=False,
        idle_takes_device=True,
        sources={
            "layout": f"{_RELEASE}, dispatch_copy_epilogue and combine_reduce_epilogue kernels",
            "sm_read_gbs": f"{_RELEASE}, deep_ep/utils/envs.py, get_sm_read_gbs",
            "sm_write_gbs": f"{_RELEASE}, deep_ep/utils/envs.py, get_sm_write_gbs",
            **dict.fromkeys(
                ("margin", "sm_step", "min_sms", "no_overlap_sms", "even_device_cap", "combine_modelled"), _SMS
            ),
            "rdma_binds_direct": f"{_SMS}: RDMA is compared with NVLink only where there are several scale-out ranks",
            "idle_takes_device": f"{_SMS}: the device's SM count stands where the link carries nothing",
            **_QP_SOURCES,
        },
    ),
    "deepep-2": Rules(
        name="deepep-2",
        layout="staged",
        sm_read_gbs=200.0,
        sm_write_gbs=50.0,
        margin=1.25,
        sm_step=2,
        min_sms=4,
        no_overlap_sms=64,
        even_device_cap=False,
        combine_modelled=False,
        rdma_binds_direct=False,
        idle_takes_device=True,
        sources={
            "layout": f"{_JULY}: the same two kernels a call",
            "sm_read_gbs": f"{_JULY_SMS}, default argument",
            "sm_write_gbs": f"{_JULY_SMS}, default argument",
            **dict.fromkeys(
                ("margin", "sm_step", "min_sms", "no_overlap_sms", "even_device_cap", "combine_modelled"), _JULY_SMS
            ),
            "rdma_binds_direct": _JULY_SMS,
            "idle_takes_device": _JULY_SMS,
            **{key: value.replace(_EP, _JULY) for key, value in _QP_SOURCES.items()},
        },
    ),
    "epctl": Rules(
        name="epctl",
        layout="write_once",
        sm_read_gbs=40.25,
        sm_write_gbs=42.375,
        margin=1.0,
        sm_step=2,
        min_sms=4,
        no_overlap_sms=64,
        even_device_cap=True,
        combine_modelled=True,
        rdma_binds_direct=True,
        idle_takes_device=False,
        sources={
            "layout": "epctl itself: rows are written once, combine pulls partial rows and adds in registers",
            "sm_read_gbs": f"{_MEASURED}: 8 SMs read 322 GB/s from the peer with bulk copies",
            "sm_write_gbs": f"{_MEASURED}: 8 SMs write 339 GB/s to the peer with bulk copies",
            "margin": "none: the rates are measured on the link itself, so they hold what the other rules' margin stands for",
            "sm_step": "SMs come in pairs (TPCs) on Hopper and Blackwell",
            "min_sms": "as DeepEP; below it, launch and flag latency dominate",
            "no_overlap_sms": f"{_MEASURED}: 356 GB/s of 362 are reached with 48 to 64 SMs",
            "even_device_cap": "SMs come in pairs (TPCs) on Hopper and Blackwell",
            "combine_modelled": "combine pulls one row a copy and can need more SMs than dispatch",
            "rdma_binds_direct": "the link that takes longest is the one to feed, whatever the mode",
            "idle_takes_device": "SMs beyond the minimum gain nothing where no link carries anything",
            **_QP_SOURCES,
        },
    ),
}
"""By name, in the order of the command's help."""


def rules_named(name: str) -> Rules:
    """The rules of that name. Raises RefusalError unknown_rules."""
    if name not in RULES:
        known = ", ".join(RULES)
        raise RefusalError(
            "unknown_rules", f"no rules are called {name!r}", f"there are {known}", "give --rules deepep-2.5"
        )
    return RULES[name]


def calibrated(rules: Rules, *, sm_read_gbs: float, sm_write_gbs: float, source: str) -> Rules:
    """`rules` with per-SM rates (GB/s) measured on the machine at hand; `source` says where. Raises RefusalError sm_rate_missing."""
    rate("the calibrated read rate per SM", sm_read_gbs, "sm_rate_missing", example="40")
    rate("the calibrated write rate per SM", sm_write_gbs, "sm_rate_missing", example="42")
    sources = {**rules.sources, "sm_read_gbs": source, "sm_write_gbs": source}
    return msgspec.structs.replace(rules, sm_read_gbs=sm_read_gbs, sm_write_gbs=sm_write_gbs, sources=sources)
