"""The two ranks of the GIN canary as their parent sees them: what they tell, how long each stage may take, what it means."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import subprocess
import time
from collections.abc import Iterator
from typing import IO, Any

EMULATE = "EPCTL_EMULATE_NODES"
"""Set: the ranks play two nodes over epctl's loopback plugin, and every finding says so."""
LIMITS_S = {
    "load": 60.0,
    "communicator": 40.0,
    "offered": 20.0,
    "kernels": 60.0,
    "device communicator": 30.0,
    "trial": 34.0,
}
"""Stage → seconds. Loading and kernels may have to be compiled; a trial is two kernels that give up after 15 s at most."""
DEFAULT_S = 20.0
GRACE_S = 2.0
"""How long a rank may go on after the other one has told of a failure: it may have seen the cause."""
WORST = ("failed", "wrong", "hang", "lost", "untried", "ok")
"""Which outcome counts when the ranks differ."""
MAX_LINE_BYTES = 1 << 16


def canary(
    argv: tuple[tuple[str, ...], tuple[str, ...]],
    environs: tuple[dict[str, str], dict[str, str]],
    deadline: float,
) -> Iterator[dict[str, Any]]:
    """Lines to tell, each as soon as it is known. Starts a new pair of ranks after each type that did not work."""
    done: list[str] = []
    emulated = bool(environs[0].get(EMULATE))
    seed = str(secrets.randbits(31))
    while True:
        pair = Pair(tuple((*one, ",".join(done), seed) for one in argv), environs)
        try:
            failure = pair.follow(deadline)
        finally:
            pair.end()
        trials = pair.trials()
        for trial in trials:
            yield {"stage": "trial", "emulated": emulated, **trial}
        done += [trial["name"] for trial in trials]
        left = [name for name in pair.offered if name not in done]
        if failure is not None:
            yield failure
        elif not left:
            yield {"stage": "end", "tried": len(done)}
        elif not trials:  # cannot be, and must not go on for ever
            yield {"stage": "failed", "error": "failed", "detail": f"the ranks did not try {left[0]}"}
        else:
            continue
        return


class Told:
    """What one rank has told, and the stage that it is in."""

    def __init__(self) -> None:
        self.stage = "start"
        self.since = time.monotonic()
        self.num_open = 2
        """Of standard output and error: the last words may come after the last line."""
        self.is_through = False
        self.failed: dict[str, Any] | None = None
        self.trials: dict[str, dict[str, Any]] = {}
        self.buffer = b""

    @property
    def ended(self) -> bool:
        """It prints nothing any more."""
        return self.num_open == 0

    def limit_s(self) -> float:
        """Of the stage."""
        return next((limit for name, limit in LIMITS_S.items() if self.stage.startswith(name)), DEFAULT_S)

    def type_of_stage(self) -> str:
        """The type that the stage is about; '' before and after."""
        for name in ("kernels ", "device communicator ", "trial "):
            if self.stage.startswith(name):
                return self.stage[len(name) :]
        return ""

    def is_bad(self) -> bool:
        """It has told of a failure."""
        return self.failed is not None or any(one["outcome"] not in ("ok", "untried") for one in self.trials.values())


class Pair:
    """Two ranks that run."""

    def __init__(self, argv: tuple[tuple[str, ...], ...], environs: tuple[dict[str, str], dict[str, str]]) -> None:
        self.told = [Told(), Told()]
        self.offered: list[str] = []
        self._stderr = [b"", b""]
        self._hung: dict[str, str] = {}
        self._children: list[subprocess.Popen[bytes]] = []
        for one, environ in zip(argv, environs, strict=True):
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            self._children.append(subprocess.Popen(one, env=environ, cwd="/", **pipes))  # type: ignore[call-overload]

    def end(self) -> None:
        """Both, whatever they do."""
        for child in self._children:
            child.kill()
        for child in self._children:
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=2.0)

    def follow(self, deadline: float) -> dict[str, Any] | None:
        """Until both have ended, or one hangs. A line when the canary itself could not be done."""
        with selectors.DefaultSelector() as selector:
            for rank, child in enumerate(self._children):
                for stream, name in ((child.stdout, "out"), (child.stderr, "err")):
                    assert stream is not None  # noqa: S101 - all are pipes
                    os.set_blocking(stream.fileno(), False)
                    selector.register(stream, selectors.EVENT_READ, (rank, name))
            bad_since = 0.0
            while not all(told.ended for told in self.told):
                for key, _ in selector.select(0.05):
                    self._read(key, selector)
                now = time.monotonic()
                if bad_since == 0.0 and any(told.is_bad() for told in self.told):
                    bad_since = now
                if bad_since and now - bad_since > GRACE_S:
                    break
                if self._overdue(now, deadline):
                    break
        return self._failure()

    def _read(self, key: selectors.SelectorKey, selector: selectors.BaseSelector) -> None:
        rank, name = key.data
        stream: IO[bytes] = key.fileobj  # type: ignore[assignment]
        chunk = os.read(stream.fileno(), 65536)
        if not chunk:
            selector.unregister(stream)
            self.told[rank].num_open -= 1
            return
        if name == "err":
            self._stderr[rank] = (self._stderr[rank] + chunk)[-4096:]
            return
        told = self.told[rank]
        *whole, told.buffer = (told.buffer + chunk)[-MAX_LINE_BYTES:].split(b"\n")
        for line in whole:
            # NCCL_DEBUG prints to standard output, too.
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                if isinstance(entry, dict):
                    self._take(rank, entry)

    def _take(self, rank: int, entry: dict[str, Any]) -> None:
        told = self.told[rank]
        told.since = time.monotonic()
        if isinstance(entry.get("begin"), str):
            told.stage = entry["begin"]
        stage = entry.get("stage")
        if stage == "id":
            stdin = self._children[1].stdin
            assert stdin is not None  # noqa: S101 - it is a pipe
            with contextlib.suppress(OSError):  # a rank that died is told of by its own end
                stdin.write(f"{entry['id']}\n".encode())
                stdin.flush()
        elif stage == "offered":
            self.offered = [name for name in entry["types"] if isinstance(name, str)]
        elif stage == "trial":
            told.trials[entry["name"]] = {key: value for key, value in entry.items() if key != "stage"}
        elif stage == "failed":
            told.failed = entry
        elif stage == "end":
            told.is_through = True

    def _overdue(self, now: float, deadline: float) -> bool:
        """Whether a rank is past its limit; then the type that it is at hangs."""
        for rank, told in enumerate(self.told):
            late = now - told.since
            if told.ended or (late <= told.limit_s() and now <= deadline):
                continue
            name = told.type_of_stage() if late > told.limit_s() else ""
            text = f"rank {rank} has not come out of the stage {told.stage!r} in {late:.0f} s"
            self._hung[name] = text
            return True
        return False

    def trials(self) -> list[dict[str, Any]]:
        """One entry for each type that a rank told about or hangs in, in the order in which they were tried."""
        names = list(dict.fromkeys([name for told in self.told for name in told.trials] + [n for n in self._hung if n]))
        return [self._merged(name) for name in names]

    def _merged(self, name: str) -> dict[str, Any]:
        found = [told.trials[name] for told in self.told if name in told.trials]
        if name in self._hung:
            stage = next(told.stage for told in self.told if told.type_of_stage() == name)  # who was late is in it
            where = stage[: -len(name) - 1]
            found.append({"name": name, "outcome": "hang", "where": where, "detail": self._hung[name]})
        elif len(found) < len(self.told) and all(one["outcome"] == "ok" for one in found):
            missing = next(rank for rank, told in enumerate(self.told) if name not in told.trials)
            text = f"rank {missing} ended in the stage {self.told[missing].stage!r}{self._last_words(missing)}"
            found.append({"name": name, "outcome": "failed", "where": "trial", "detail": text})
        worst = min(found, key=lambda one: WORST.index(one["outcome"]))
        details = dict.fromkeys(one["detail"] for one in found if one.get("detail"))
        times = [one["round_ns"] for one in found if isinstance(one.get("round_ns"), int)]
        merged = {**worst, "detail": "; ".join(details)}
        return {**merged, "round_ns": max(times)} if times and worst["outcome"] == "ok" else merged

    def _how(self, rank: int) -> str:
        """A child that printed nothing more may take a moment to be gone."""
        try:
            return f"ended with code {self._children[rank].wait(timeout=1.0)}"
        except subprocess.TimeoutExpired:
            return "ended"

    def _last_words(self, rank: int) -> str:
        words = self._stderr[rank].decode("utf-8", "replace").strip().splitlines()
        return f": {words[-1][:200]}" if words else ""

    def _failure(self) -> dict[str, Any] | None:
        """Why the canary itself could not be done; None when it told of types, or that there are none."""
        if self.trials():
            return None
        failed = next((told.failed for told in self.told if told.failed is not None), None)
        if failed is not None:
            return failed
        if "" in self._hung:
            return {"stage": "failed", "error": "timed_out", "detail": self._hung[""]}
        for rank, told in enumerate(self.told):
            if not told.is_through:
                how = self._how(rank)
                text = f"rank {rank} {how} in the stage {told.stage!r}{self._last_words(rank)}"
                return {"stage": "failed", "error": "failed", "detail": text}
        return None
