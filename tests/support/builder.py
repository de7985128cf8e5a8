"""`python -m tests.support.builder CACHE LOG SECONDS`: one process that wants the entry of the tests of the cache."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from epctl.native.cache import Cache
from epctl.native.cache_key import Inputs

INPUTS = Inputs((("a.cu", "00"),), ("-O3",), ("nvcc 13.0.88",), "", "90a")


def build(out: Path, log: Path, seconds: float) -> None:
    """Half a file, a wait, the other half; each start and end is a line of the log."""
    with log.open("a") as stream:
        stream.write("begin\n")
    with (out / "a.cubin").open("wb") as stream:
        stream.write(b"half")
        stream.flush()
        time.sleep(seconds)
        stream.write(b"whole")
    with log.open("a") as stream:
        stream.write("end\n")


if __name__ == "__main__":
    where, log, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    entry = Cache(where, 60.0).get("a-90a", INPUTS, lambda out: build(out, log, seconds))
    print(entry.built, entry.notice, entry.file("a.cubin").read_bytes())
