"""What a bench run leaves: the record that is printed, saved and compared."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping

from msgspec import Struct

from epctl.bench.clocks import RankClocks
from epctl.bench.statistics import Rule
from epctl.bench.verdict import Verdict
from epctl.core.op import Layout, Limit, Request, Scalar, Told, Traffic
from epctl.core.op_extras import Opinion

SCHEMA: dict[str, str | int] = {"name": "epctl.bench.record", "version": 1}
_MATTERING = ("NCCL_", "EPCTL_", "CUDA_", "NVIDIA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "OMP_NUM_THREADS")


class Row(Struct, frozen=True):
    """One case. Times in µs; a sample is the time of the slowest rank."""

    op: str
    case: str
    params: dict[str, Scalar]
    ok: bool
    verdict: Verdict
    message: str = ""
    """What failed, on which ranks."""
    samples_us: tuple[float, ...] = ()
    median_us: float | None = None
    low_us: float | None = None
    """Bounds of the 95 % interval of the median; None with too few samples."""
    high_us: float | None = None
    rank_medians_us: tuple[float, ...] = ()
    """Median of each rank's own times."""
    traffic: Traffic = Traffic()
    gbs: float | None = None
    """Bytes of the busiest direction of the busiest link, over the median."""
    limit: Limit | None = None
    limit_us: float | None = None
    limit_share: float | None = None
    predicted_us: float | None = None
    logical_gbs: float | None = None
    """Bytes that the busiest rank is given, those of its own included, over the median; None where nothing but traffic is counted."""
    ratios: dict[str, float] = {}
    """Median of each rival, timed in the same run, over this median: above 1, this is faster."""
    hidden_share: float | None = None
    """Of the communication's own time, what the computation beside it hid; None where there is none."""
    told: tuple[Told, ...] = ()
    """By rank, where the op tells more."""
    settled: bool = False
    """The interval became narrow enough, or as many samples as were asked for were taken; False: the budget was over before."""


class Record(Struct, frozen=True):
    """All of one run of `epctl bench`."""

    schema: dict[str, str | int]
    command: str
    epctl_version: str
    taken_at: str
    layout: Layout
    cautions: tuple[str, ...]
    request: Request
    rule: Rule
    versions: dict[str, str]
    environment: dict[str, str]
    clocks: tuple[RankClocks, ...]
    warnings: tuple[str, ...]
    rows: tuple[Row, ...]
    complete: bool
    """False when the run ended before all cases had."""
    absent: dict[str, str] = {}
    """Ops without a case on this layout, and why."""
    opinions: tuple[Opinion, ...] = ()
    """Of other tools, on the links of the first node."""
    ended_by: str = ""
    """What ended the run before all cases had."""


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that change what is measured."""
    return {name: environ[name] for name in sorted(environ) if name.startswith(_MATTERING)}


def versions(layout: Layout) -> dict[str, str]:
    """Of all that takes part, as far as it is known."""
    from importlib.metadata import PackageNotFoundError, version

    found = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "nccl": layout.nccl_version,
        "driver": layout.driver_version,
    }
    with contextlib.suppress(PackageNotFoundError):
        found["torch"] = version("torch")
    return {name: told for name, told in found.items() if told}


def mattering() -> dict[str, str]:
    """`environment` of this process."""
    return environment(os.environ)
