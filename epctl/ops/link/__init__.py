"""Link probes: how fast rows move between two GPUs and within one, and how long a flag takes there and back."""

from __future__ import annotations

from epctl.core.op import Case, Corruption, Hardware, Layout, Limit, Request, Running, Tier, Traffic, World
from epctl.ops.link import cases, limits


class LinkOp:
    """See Op."""

    name = "link"
    summary = "NVLink by copy engines and SMs, every pair, flag latency, local memory"
    tiers: tuple[Tier, ...] = ("gpu", "cpu")

    def cases(self, request: Request, layout: Layout) -> tuple[Case, ...]:
        """See Op."""
        return cases.bench_cases(request, layout)

    def selftest_cases(self, layout: Layout, seed: int, tier: Tier) -> tuple[Case, ...]:
        """See Op."""
        return cases.selftest_cases(layout, seed, tier)

    def corruptions(self, case: Case) -> tuple[Corruption, ...]:
        """A round trip has nothing but signals, the others nothing but bytes."""
        if case.word("kind") == cases.ROUND_TRIP:
            return ("signal",)
        return ("byte",) if case.whole("bytes") else ()

    def traffic(self, case: Case, layout: Layout) -> Traffic:  # noqa: ARG002 - the same on every layout
        """See Op."""
        return limits.traffic(case)

    def limit(self, case: Case, layout: Layout, hardware: Hardware) -> Limit | None:  # noqa: ARG002
        """See Op."""
        return limits.limit(case, hardware)

    def predict(self, case: Case, layout: Layout, hardware: Hardware) -> float | None:  # noqa: ARG002
        """See Op."""
        return limits.predict(case, hardware)

    def make(self, case: Case, world: World) -> Running:
        """See Op."""
        if world.tier == "cpu":
            from epctl.ops.link import cpu

            return cpu.make(case, world)
        if case.word("kind") in cases.LOCAL:
            from epctl.ops.link import local

            return local.make(case, world)
        from epctl.ops.link import nvlink

        return nvlink.make(case, world)


OP = LinkOp()
