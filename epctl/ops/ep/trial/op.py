"""The op "ep": dispatch and combine of expert parallelism, checked against the reference, and timed beside other ways to do it."""

from __future__ import annotations

from epctl.core.op import Case, Corruption, Hardware, Layout, Limit, Request, Running, Tier, Traffic, World
from epctl.ops.ep.trial import cases, figures, sweep
from epctl.ops.ep.trial.options import BURST, EXCHANGE, GRAPH, PAIR

ENOUGH_TOKENS = 32
"""From so many tokens of every rank on, a balanced gate sends some from each rank to each, which damage needs."""


class EpOp:
    """See Op, Stressed and Explains of epctl.core.op."""

    name = "ep"
    summary = "expert-parallel dispatch and combine over NVLink"
    tiers: tuple[Tier, ...] = ("gpu", "cpu")

    def cases(self, request: Request, layout: Layout) -> tuple[Case, ...]:
        """See Op."""
        return cases.bench_cases(request, layout)

    def selftest_cases(self, layout: Layout, seed: int, tier: Tier) -> tuple[Case, ...]:
        """See Op."""
        return sweep.cases(layout, seed, tier)

    def stress_cases(self, layout: Layout, seed: int, tier: Tier, count: int) -> tuple[Case, ...]:
        """See Stressed."""
        return sweep.stress_cases(layout, seed, tier, count)

    def absence(self, layout: Layout) -> str:
        """See Explains."""
        if layout.scale_out == 1:
            return ""
        return "its ranks lie in several load/store domains, and this version has no expert-parallel kernels over GIN"

    def corruptions(self, case: Case) -> tuple[Corruption, ...]:
        """Bytes where every rank sends something to each; signals where kernels wait for them."""
        params = case.params
        if params.get("kind") != EXCHANGE or params["masked"] or params["gate"] != "balanced" or not params["weights"]:
            return ()
        if min(int(word) for word in str(params["tokens"]).split("+")) < ENOUGH_TOKENS:
            return ()
        return ("byte", "signal") if case.params["signals"] else ("byte",)

    def traffic(self, case: Case, layout: Layout) -> Traffic:
        """See Op. What a balanced gate sends on average; a run tells what its own routing did."""
        return figures.traffic(case, layout)

    def limit(self, case: Case, layout: Layout, hardware: Hardware) -> Limit | None:
        """See Op."""
        return figures.limit(case, layout, hardware)

    def predict(self, case: Case, layout: Layout, hardware: Hardware) -> float | None:
        """See Op."""
        return figures.predict(case, layout, hardware)

    def make(self, case: Case, world: World) -> Running:
        """See Op."""
        kind = case.word("kind")
        if world.tier == "cpu":
            return _on_cpu(kind, case, world)
        if kind == EXCHANGE:
            from epctl.ops.ep.trial.exchange import Exchange

            return Exchange(case, world)
        if kind in (BURST, PAIR, GRAPH):
            from epctl.ops.ep.trial import repeated

            return repeated.Graph(case, world) if kind == GRAPH else repeated.Burst(case, world)
        from epctl.ops.ep.trial import timed

        return timed.make(case, world)


def _on_cpu(kind: str, case: Case, world: World) -> Running:
    if kind == EXCHANGE:
        from epctl.ops.ep.trial.cpu import CpuExchange

        return CpuExchange(case, world)
    from epctl.ops.ep.trial import timed

    return timed.make(case, world)


OP = EpOp()
