"""In what order a sample on a GPU is taken; a played PyTorch keeps the book."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from epctl.bench import timing
from epctl.core.errors import EpctlError

L2_BYTES = 50 << 20


class Book:
    """A world with a GPU whose clock goes on by one millisecond with each thing it is asked to do."""

    rank, tier, device = 3, "gpu", "cuda:0"

    def __init__(self, *, ends: bool = True, measures: bool = False, host_s: float = 0.0) -> None:
        self.done: list[str] = []
        self.flush_bytes = 0
        self._ends, self._measures, self._host_s = ends, measures, host_s
        book = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self._timed = enable_timing

            def record(self) -> None:
                book.note("event" if self._timed else "settle")
                self.at = len(book.done)

            def query(self) -> bool:
                return book._ends

            def elapsed_time(self, end: Any) -> float:  # noqa: ANN401
                return float(end.at - self.at)

        properties = SimpleNamespace(L2_cache_size=L2_BYTES)
        cuda = SimpleNamespace(Event=Event, _sleep=self._sleep, get_device_properties=lambda _: properties)
        self.torch = SimpleNamespace(cuda=cuda, empty=self._empty, uint8="uint8")

    def _sleep(self, cycles: int) -> None:
        self.note("sleep")
        self.slept_s = cycles / timing.CYCLES_PER_S

    def _empty(self, size: int, **_: object) -> Any:  # noqa: ANN401
        self.flush_bytes = size
        return SimpleNamespace(zero_=lambda: self.note("flush"))

    def note(self, what: str) -> None:
        self.done.append(what)

    def barrier(self) -> None:
        self.note("barrier")

    def run(self) -> None:
        self.note("run")
        time.sleep(self._host_s)

    def measured_us(self) -> float | None:
        return 1.27 if self._measures else None


def taken(book: Any, count: int) -> list[float]:  # noqa: ANN401
    return timing.GpuTimer(book).take(book, count)


def test_each_sample_has_a_cold_cache_and_a_barrier_right_before_it() -> None:
    book = Book()
    assert taken(book, 2) == [2000.0, 2000.0]
    sample = ["flush", "barrier", "event", "run", "event"]
    assert book.done == ["barrier", "run", "settle", "sleep", *sample, *sample, "settle"]
    assert book.flush_bytes >= 2 * L2_BYTES


def test_samples_are_enqueued_in_chunks_that_a_stream_holds() -> None:
    book = Book()
    assert len(taken(book, 70)) == 70
    assert book.done.count("sleep") == 3
    assert book.done.count("run") == book.done.count("barrier") == 71


def test_a_kernel_that_measures_itself_is_taken_one_by_one() -> None:
    book = Book(measures=True)
    assert taken(book, 3) == [1.27, 1.27, 1.27]
    assert book.done.count("sleep") == 3


@pytest.mark.parametrize(("host_s", "least_s"), [(0.0, 1e-4), (4e-4, 7e-4), (0.02, 2e-3)])
def test_the_gpu_idles_until_python_has_enqueued_a_chunk(host_s: float, least_s: float) -> None:
    book = Book(host_s=host_s)
    taken(book, 4)
    assert least_s <= book.slept_s / 4 <= timing.MAX_AHEAD_S


def test_a_warm_up_takes_no_samples() -> None:
    book: Any = Book()
    timing.warm_up(book, book)
    assert book.done == ["barrier", "run"] * timing.WARM_UPS + ["settle"]


def test_a_gpu_that_hangs_is_an_error_that_names_the_rank() -> None:
    book: Any = Book(ends=False)
    with pytest.raises(EpctlError, match="rank 3's GPU has not ended its samples") as caught:
        timing.settle(book, "its samples", limit_s=0.01)
    assert caught.value.exit_code == 1
