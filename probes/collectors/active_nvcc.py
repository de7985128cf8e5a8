"""Compiles three lines of CUDA C++ to a cubin in a folder of its own, which is removed again."""
# os.path throughout: what any interpreter has, and fast to start with.
# ruff: noqa: PTH110, PTH118, PTH120, PTH123, PTH202

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctl.probes.collectors import _cuda_home
else:
    sys.path.append(os.path.dirname(os.path.realpath(__file__)))
    import _cuda_home

COMPILE_S = 60.0
ARCHITECTURE = "sm_90"
SOURCE = """#include <cuda_runtime.h>
#include <cuda/std/tuple>
__global__ void probe(int *out) { *out = cuda::std::get<0>(cuda::std::make_tuple(7)) + static_cast<int>(threadIdx.x); }
"""
_ERROR = re.compile(r"\b(?:fatal |catastrophic )?error\b", re.I)


def main() -> None:
    """Prints {"ok": …, "message": first error line}."""
    json.dump(compile_probe(), sys.stdout)


def compile_probe() -> dict[str, Any]:
    """The document."""
    home = _cuda_home.find()[0]
    nvcc = os.path.join(home, "bin", "nvcc")
    if not home or not os.access(nvcc, os.X_OK):
        return {"ok": {"error": "tool_missing", "detail": "no nvcc"}, "message": ""}
    with tempfile.TemporaryDirectory(prefix="epctl-nvcc-") as folder:
        source, target = os.path.join(folder, "probe.cu"), os.path.join(folder, "probe.cubin")
        with open(source, "w") as stream:
            stream.write(SOURCE)
        argv = [nvcc, "-std=c++17", f"-arch={ARCHITECTURE}", "-cubin", "-o", target, source]
        try:
            done = subprocess.run(argv, capture_output=True, timeout=COMPILE_S, check=False, cwd=folder)
        except subprocess.TimeoutExpired:
            return {"ok": {"error": "timed_out", "detail": f"nvcc took longer than {COMPILE_S:g} s"}, "message": ""}
        except OSError as error:
            return {"ok": {"error": "failed", "detail": str(error)}, "message": ""}
        made = done.returncode == 0 and os.path.exists(target) and os.path.getsize(target) > 0
        said = (done.stderr + b"\n" + done.stdout).decode("utf-8", "replace").replace(folder + os.sep, "")
    return {"ok": made, "message": "" if made else first_error(said)}


def first_error(said: str) -> str:
    """The first line that says error, else the first line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if _ERROR.search(line)), lines[0] if lines else "nvcc said nothing")[:300]


if __name__ == "__main__":
    main()
