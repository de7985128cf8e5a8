"""GIN probes: put, get and signals from the GPU over the network, their latency, bandwidth and message rate."""

from __future__ import annotations

from epctl.core.op import Case, Corruption, Hardware, Layout, Limit, Request, Running, Tier, Traffic, World
from epctl.core.op_extras import Opinion
from epctl.ops.gin import cases


class GinOp:
    """See Op."""

    name = "gin"
    summary = "put, get and signals over NCCL's GIN: latency, bandwidth by contexts, rates"
    tiers: tuple[Tier, ...] = ("gpu", "cpu")

    def cases(self, request: Request, layout: Layout) -> tuple[Case, ...]:
        """See Op. None without GIN: `absence` says why."""
        return cases.bench_cases(request, layout)

    def selftest_cases(self, layout: Layout, seed: int, tier: Tier) -> tuple[Case, ...]:
        """See Op."""
        return cases.selftest_cases(layout, seed, tier)

    def absence(self, layout: Layout) -> str:
        """Why there are no cases, gate by gate; '' when there are some."""
        from epctl.ops.gin import absence

        return absence.told(layout)

    def second_opinions(self, layout: Layout) -> tuple[Opinion, ...]:
        """ib_write_bw of perftest between the ports of this node, where GIN used them."""
        if layout.tier == "cpu" or layout.emulated or not layout.gin_type:
            return ()
        from epctl.ops.gin import perftest
        from epctl.probes import load

        return perftest.second_opinions(load.live(active=False))

    def corruptions(self, case: Case) -> tuple[Corruption, ...]:
        """Gets have no signals, signals no bytes."""
        byte: tuple[Corruption, ...] = ("byte",) if case.whole("bytes") else ()
        return byte if case.word("kind") == cases.GET else (*byte, "signal")

    def traffic(self, case: Case, layout: Layout) -> Traffic:  # noqa: ARG002 - the same on every layout
        """Of one message of each context: `measured_us` is its time."""
        moved = case.whole("bytes") * case.whole("contexts")
        return Traffic(rdma_out_bytes=moved, rdma_in_bytes=moved, hbm_bytes=2 * moved)

    def limit(self, case: Case, layout: Layout, hardware: Hardware) -> Limit | None:
        """The line rate of the rank's adapter; none over the loopback plugin, and for signals alone. A round trip sends one way at a
        time, so that its limit is half of that."""
        if layout.emulated or not hardware.rdma_gbs or not case.whole("bytes"):
            return None
        share = 0.5 if case.word("kind") == cases.ROUND_TRIP else 1.0
        return Limit(hardware.rdma_gbs * share, "gbs", "line rate of the adapter", hardware.rdma_source)

    def predict(self, case: Case, layout: Layout, hardware: Hardware) -> float | None:  # noqa: ARG002
        """Nobody knows: how long a proxy or an adapter takes for a message depends on both."""
        return None

    def make(self, case: Case, world: World) -> Running:
        """See Op."""
        if world.tier == "cpu":
            from epctl.ops.gin import cpu

            return cpu.make(case, world)
        from epctl.ops.gin import gpu

        return gpu.make(case, world)


OP = GinOp()
