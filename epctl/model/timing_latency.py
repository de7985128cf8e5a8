"""What a call takes beside moving bytes: launches, flag hops, fixed cost."""

from __future__ import annotations

from functools import lru_cache

from epctl.model.rules import Layout
from epctl.model.timing_bands import KERNEL_US
from epctl.model.timing_types import Stage, Term
from epctl.model.traffic import Domain


@lru_cache(maxsize=1024)
def latency_terms(
    domain: Domain, stage: Stage, layout: Layout, times: tuple[float, float, float]
) -> tuple[Term, Term, Term]:
    """Launches, flag hops and fixed cost; times: of a launch, of a hop over NVLink, of one over RDMA."""
    launch, near, far = times
    launches = 2 if layout == "staged" else 1
    nvlink, rdma = _hops(domain, stage)
    hops = f"{nvlink} over NVLink x {near:g} us + {rdma} over RDMA x {far:g} us"
    fixed = KERNEL_US[layout]
    kernel = f"{fixed.expected:g} us ({fixed.low:g} to {fixed.high:g}): {fixed.source}"
    return (
        Term("launch", 0.0, 0.0, launches * launch, f"{launches} x {launch:g} us", adds=True),
        Term("hops", 0.0, 0.0, nvlink * near + rdma * far, hops, adds=True),
        Term("kernel", 0.0, 0.0, fixed.expected, kernel, adds=True),
    )


def _hops(domain: Domain, stage: Stage) -> tuple[int, int]:
    """Flags one after another, over NVLink and RDMA. Dispatch: counts, then data (two-level: forwarded over NVLink); combine: data."""
    if domain.num_ranks == 1:
        return 0, 0
    flags = 2 if stage == "dispatch" else 1
    return (flags, 0) if domain.num_nodes == 1 else (int(domain.two_level), flags)
