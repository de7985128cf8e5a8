"""Ranks as processes that load the loopback plugin over a made-up CUDA driver; the test carries between them what NCCL's bootstrap
would."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import loopback_plugin_api as api

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0


@dataclass
class Outcome:
    """What a rank left."""

    result: Any
    """What its scenario returned; None when it ended before."""
    code: int
    stderr: str


def run(scenario: str, num_ranks: int, plugin: Path, driver: Path, **environ: str) -> list[Outcome]:
    """Runs a function of tests.support.loopback_scenarios in each of `num_ranks` processes."""
    everything = {**os.environ, "EPCTL_LOOPBACK_TIMEOUT_S": "5", **environ}
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.loopback_scenarios",
                scenario,
                str(rank),
                str(num_ranks),
                plugin,
                driver,
            ],
            cwd=ROOT,
            env=everything,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(num_ranks)
    ]
    timer = threading.Timer(LIMIT_S, lambda: [rank.kill() for rank in ranks])
    timer.start()
    try:
        results = _serve(ranks)
        ends = [rank.communicate() for rank in ranks]
    finally:
        timer.cancel()
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [Outcome(results.get(i), ranks[i].returncode, ends[i][1]) for i in range(num_ranks)]


def _serve(ranks: list[subprocess.Popen[str]]) -> dict[int, Any]:
    """Answers each round of `gather` when all that live have spoken."""
    results: dict[int, Any] = {}
    alive = set(range(len(ranks)))
    while alive:
        round_ = {}
        for i in sorted(alive):
            stdout = ranks[i].stdout
            line = stdout.readline() if stdout else ""
            said = json.loads(line) if line.strip() else {}
            if "gather" in said:
                round_[i] = said["gather"]
                continue
            alive.discard(i)
            if "result" in said:
                results[i] = said["result"]
        answer = json.dumps([round_.get(i, "") for i in range(len(ranks))]) + "\n"
        for i in round_:
            stdin = ranks[i].stdin
            if stdin:
                stdin.write(answer)
                stdin.flush()
    return results


class Rank:
    """This process as one rank."""

    def __init__(self, rank: int, num_ranks: int, plugin: str, driver: str) -> None:
        self.rank, self.num_ranks = rank, num_ranks
        # The plugin asks for libcuda.so.1 by name: the loader answers with what has that name already.
        self.cuda = ctypes.CDLL(driver, ctypes.RTLD_GLOBAL)
        self.cuda.fake_alloc.restype = ctypes.c_void_p
        self.cuda.fake_alloc.argtypes = [ctypes.c_size_t, ctypes.c_int]
        self.cuda.fake_free.argtypes = [ctypes.c_void_p]
        self.cuda.fake_alive.restype = ctypes.c_long
        self.plugin = api.Plugin(plugin)
        self.next = (rank + 1) % num_ranks
        self.previous = (rank - 1) % num_ranks

    def gather(self, mine: bytes = b"") -> list[bytes]:
        """What each rank gave; b'' of one that has ended."""
        print(json.dumps({"gather": mine.hex()}), flush=True)
        return [bytes.fromhex(text) for text in json.loads(sys.stdin.readline())]

    def connect(self) -> int:
        """A collective of all ranks, connected as NCCL does it."""
        listener, handle = self.plugin.listen()
        handles = self.gather(handle)
        collective = self.plugin.connect(listener, handles, self.rank)
        self.plugin.call("closeListen", listener)
        return collective

    def alloc(self, size: int, exportable: bool = True) -> int:
        """Zeroed memory of the made-up GPU."""
        return int(self.cuda.fake_alloc(size, int(exportable)))

    def register(self, collective: int, data: int, size: int, kind: int = api.CUDA, flags: int = 0) -> int:
        """The registration's handle."""
        return self.plugin.made("regMrSym", collective, data, size, kind, flags)

    def put(self, context: int, rank: int, target: Place, source: Place, size: int, index: int = 0) -> int:
        """The request of iput."""
        return self.plugin.made("iput", context, index, source[1], source[0], size, target[1], target[0], rank)

    def put_signal(
        self,
        context: int,
        rank: int,
        target: Place,
        source: Place,
        size: int,
        signal: Place,
        value: int = 1,
        *,
        index: int = 0,
        strong: bool = True,
    ) -> int:
        """The request of iputSignal that adds."""
        return self.plugin.made(
            "iputSignal",
            context,
            index,
            source[1],
            source[0],
            size,
            target[1],
            target[0],
            rank,
            signal[1],
            signal[0],
            value,
            api.ADD,
            strong,
        )

    def get(self, context: int, rank: int, remote: Place, local: Place, size: int, index: int = 0) -> int:
        """The request of iget."""
        return self.plugin.made("iget", context, index, remote[1], remote[0], size, local[1], local[0], rank)

    def flush(self, context: int, rank: int, index: int = 0) -> int:
        """The request of iflush."""
        return self.plugin.made("iflush", context, index, None, rank)

    def alive(self) -> dict[str, int]:
        """What the driver has given out and not got back."""
        kinds = "context stream event module host handle reserved mapped pushed".split()  # noqa: SIM905
        return {kind: found for kind in kinds if (found := self.cuda.fake_alive(kind.encode())) != 0}


Place = tuple[int, int]
"""(registration, offset)."""


def read64(address: int) -> int:
    """64 bits at the address."""
    return ctypes.c_uint64.from_address(address).value


def write64(address: int, value: int) -> None:
    """Sets 64 bits at the address."""
    ctypes.c_uint64.from_address(address).value = value


def num_fds() -> int:
    """Files that this process has open."""
    return len(list(Path("/proc/self/fd").iterdir())) - 1
