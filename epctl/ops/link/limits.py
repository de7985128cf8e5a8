"""What links and local memory can do: figures measured on 2 x H200 (epctl/data/links/h200.toml), scaled to the links at hand."""

from __future__ import annotations

import itertools
from functools import lru_cache
from importlib import resources

import msgspec
from msgspec import Struct

from epctl.core.op import Case, Hardware, Limit, Traffic
from epctl.model.hardware import measured
from epctl.ops.link.cases import ALL_SMS, LOCAL, READS, ROUND_TRIP, WRITES


class LinkTable(Struct, frozen=True, forbid_unknown_fields=True):
    """See the file."""

    machine: str
    link_gbs: float
    hbm_peak_gbs: float
    round_trip_us: float
    hbm_copy_gbs: float
    rates: dict[str, tuple[tuple[int, float], ...]]


@lru_cache(maxsize=1)
def table() -> LinkTable:
    """The packaged figures."""
    file = resources.files("epctl").joinpath("data", "links", "h200.toml")
    return msgspec.toml.decode(file.read_bytes(), type=LinkTable)


def interpolated(points: tuple[tuple[int, float], ...], sms: float) -> float:
    """On straight lines between points, flat outside."""
    if sms <= points[0][0]:
        return points[0][1]
    for (low, low_gbs), (high, high_gbs) in itertools.pairwise(points):
        if sms <= high:
            return low_gbs + (high_gbs - low_gbs) * (sms - low) / (high - low)
    return points[-1][1]


def traffic(case: Case) -> Traffic:
    """Of the busiest rank."""
    kind, num_bytes = case.word("kind"), case.whole("bytes")
    if kind in LOCAL:
        return Traffic(hbm_bytes=2 * num_bytes if kind == "hbm-copy" else num_bytes)
    if kind == ROUND_TRIP:
        return Traffic()
    both = case.word("way") == "both"
    hbm = {"pull-add": 2 * num_bytes}.get(kind, num_bytes) + (num_bytes if both else 0)
    return Traffic(
        nvlink_out_bytes=num_bytes if both or kind in WRITES else 0,
        nvlink_in_bytes=num_bytes if both or kind in READS else 0,
        hbm_bytes=hbm,
    )


def limit(case: Case, hardware: Hardware) -> Limit | None:
    """None where the links or the memory of the GPU are not known."""
    kind, found = case.word("kind"), table()
    if kind == ROUND_TRIP:
        return None
    if kind in LOCAL:
        return _memory_limit(kind, hardware)
    if not hardware.nvlink_gbs:
        return None
    if case.word("way") != "both":
        return Limit(hardware.nvlink_gbs, "gbs", "nominal NVLink", hardware.nvlink_source)
    best = max(gbs for _, gbs in found.rates[kind])
    return Limit(best * _share(hardware), "gbs", f"{kind}, both ways", _source(f"{best:g} GB/s", hardware))


def _memory_limit(kind: str, hardware: Hardware) -> Limit | None:
    if not hardware.hbm_peak_gbs:
        return None
    if kind != "hbm-copy":
        return Limit(hardware.hbm_peak_gbs, "gbs", "nominal HBM", hardware.hbm_source)
    found = table()
    share = hardware.hbm_peak_gbs / found.hbm_peak_gbs
    return Limit(
        2 * found.hbm_copy_gbs * share,
        "gbs",
        "copy within HBM, read and written",
        f"{found.machine}: {found.hbm_copy_gbs:g} GB/s of payload" + (f", x {share:.3g}" if share != 1 else ""),
    )


def _share(hardware: Hardware) -> float:
    return hardware.nvlink_gbs / table().link_gbs


def _source(figure: str, hardware: Hardware) -> str:
    scaled = "" if abs(_share(hardware) - 1) < 1e-3 else f", x {_share(hardware):.3g} for {hardware.nvlink_gbs:g} GB/s"
    return f"{table().machine}: {figure}{scaled}"


def predict(case: Case, hardware: Hardware) -> float | None:
    """µs of one run: one hop, and the bytes at the rate of that many SMs. None where the rate is not known."""
    kind, found = case.word("kind"), table()
    if kind == ROUND_TRIP:
        return found.round_trip_us if hardware.nvlink_gbs else None
    if kind in LOCAL:
        known = _memory_limit(kind, hardware) if kind == "hbm-copy" else None
        return known.us(traffic(case)) if known is not None else None
    if not hardware.nvlink_gbs:
        return None
    points, units = found.rates[kind], _units(case, hardware)
    if units < points[0][0] and kind != "copy-engine":
        return None
    gbs = interpolated(points, units) * _share(hardware)
    return case.whole("bytes") / gbs / 1e3 + float(measured().nvlink_hop_us.value)


def _units(case: Case, hardware: Hardware) -> float:
    """SMs, or blocks for pull-add, whose speed depends on what is in flight. Of 132 SMs, where the GPU has others."""
    sms = case.params.get("sms", ALL_SMS)
    whole = hardware.num_sms or 132
    used = whole if sms == ALL_SMS else min(int(sms), whole)
    return used * int(case.params.get("blocks_per_sm", 1))
