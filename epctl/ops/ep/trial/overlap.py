"""A call beside matrix products in another stream: how much of the communication they hide."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from msgspec import structs

from epctl.core.op import Case, Outcome, Told, World
from epctl.ops.ep.trial import compare
from epctl.ops.ep.trial.timed import Timed

NUM_SAMPLES = 15
MIN_ROWS = 128
"""Of the product: fewer leave most of a tensor core's tile empty."""
AHEAD_CYCLES = 400_000
"""Clock cycles of idling, so that all of a sample is enqueued before its first kernel runs."""
CONTRACT = (
    "the call begins first and takes its SMs; BF16 products [tokens, hidden] x [hidden, hidden] take what is left"
)


class Overlap(Timed):
    """The products last about as long as the call alone. What is timed is both, from the beginning of the first to the end of the last."""

    def __init__(self, case: Case, world: World) -> None:
        super().__init__(case, world)
        torch = world.torch
        num_rows, hidden = max(case.whole("tokens"), MIN_ROWS), case.whole("hidden")
        generator = world.generator(hidden)
        self._left = torch.randn((num_rows, hidden), device=world.device, generator=generator).bfloat16()
        self._right = torch.randn((hidden, hidden), device=world.device, generator=generator).bfloat16()
        self._product = torch.empty((num_rows, hidden), dtype=torch.bfloat16, device=world.device)
        self._stream = torch.cuda.Stream(world.device, priority=-1)
        self._num_products = 1
        self._multiply()
        torch.cuda.synchronize(world.device)
        self._wanted = self._product.clone()
        alone_us, product_us = self._measured(self._communicate), self._measured(self._multiply)
        told = world.meeting.all_gather(f"overlap {case.name}", f"{alone_us / product_us}".encode())
        self._num_products = max(1, round(max(float(one) for one in told)))

    def _communicate(self) -> None:
        self._result = self._call()

    def _multiply(self) -> None:
        for _ in range(self._num_products):
            self._world.torch.mm(self._left, self._right, out=self._product)

    def run(self) -> None:
        """Both; the current stream goes on after both."""
        cuda = self._world.torch.cuda
        current = cuda.current_stream(self._world.device)
        self._stream.wait_stream(current)
        with cuda.stream(self._stream):
            self._communicate()
        self._multiply()
        current.wait_stream(self._stream)

    def check(self) -> Outcome:
        """The communication as without a product, and the products as without communication."""
        found = super().check()
        product = compare.outcome(compare.same("product", self._product, self._wanted))
        self._product.zero_()
        return found if not found.ok else product

    def _measured(self, work: Callable[[], None]) -> float:
        """Median time in µs, begun on all ranks together."""
        cuda = self._world.torch.cuda
        times = []
        for _ in range(NUM_SAMPLES):
            begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            cuda._sleep(AHEAD_CYCLES)
            self._world.barrier()
            begin.record()
            work()
            end.record()
            cuda.synchronize(self._world.device)
            times.append(float(begin.elapsed_time(end)) * 1e3)
        return statistics.median(times)

    def told(self) -> Told:
        """With the times of either alone."""
        return structs.replace(
            super().told(),
            communication_us=self._measured(self._communicate),
            computation_us=self._measured(self._multiply),
            together_us=self._measured(self.run),
            note=CONTRACT,
        )
