"""Builds the plugin and the driver program for the loopback tests on GPUs, and runs the program as ranks of emulated nodes."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from epctl.core.errors import EpctlError
from epctl.native import emulation, loopback_plugin, toolchain
from epctl.native.cache import Cache

SOURCE = Path(__file__).with_name("loopback_driver.cu")
SHARED_BYTES = 4096
COMPILE_S = 300.0
GRACE_S = 10.0
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76


@dataclass
class Programs:
    """What was built."""

    plugin: Path
    driver: Path
    library: Path
    """libnccl that the driver is linked to."""
    num_gpus: int


@dataclass
class Rank:
    """What one rank left."""

    code: int
    checks: list[dict[str, Any]] = field(default_factory=list)
    log: str = ""
    """Everything that is no check: NCCL's log among it."""
    process: int = 0

    def check(self, name: str) -> dict[str, Any]:
        """The check of that name; the test fails with what the rank wrote when it has not come so far."""
        found = [one for one in self.checks if one["check"] == name]
        assert found, (
            f"{name!r} is not among {[one['check'] for one in self.checks]}, exit code {self.code}:\n{self.log}"
        )
        return found[-1]


def gpus() -> tuple[int, str]:
    """(number of GPUs, compute capability of the first); (0, '') without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0, ""
    count, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return 0, ""
    driver.cuDeviceGetAttribute(ctypes.byref(major), _CAPABILITY_MAJOR, 0)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _CAPABILITY_MINOR, 0)
    return count.value, f"{major.value}.{minor.value}"


def build(folder: Path) -> Programs:
    """Skipped where a GPU, the compiler or NCCL is missing. What does not compile is an error."""
    num_gpus, capability = gpus()
    if num_gpus == 0:
        pytest.skip("there is no GPU")
    try:
        architecture = toolchain.architecture_of(capability)
        tools = toolchain.find((architecture,), with_nccl=True)
    except EpctlError as error:
        pytest.skip(f"{error.what}: {error.why}")
    assert tools.nccl is not None
    plugin = loopback_plugin.obtain(Cache())
    library = Path(tools.nccl.library.path)
    driver = folder / "loopback_driver"
    command = [
        tools.nvcc.path,
        "-std=c++17",
        "-O2",
        f"-arch=sm_{architecture}",
        "-ccbin",
        tools.gxx.path,
        "-isystem",
        tools.nccl.headers.include,
        str(SOURCE),
        "-o",
        str(driver),
        f"-L{library.parent}",
        f"-l:{library.name}",
        "-Xcompiler",
        "-pthread",
        "-Xlinker",
        f"-rpath,{library.parent}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Programs(plugin, driver, library, num_gpus)


def run(
    programs: Programs, scenario: str, num_nodes: int, ranks_per_node: int, num_gpus: int, limit_s: int
) -> list[Rank]:
    """Runs the scenario. A process that has not ended after the limit and some seconds is killed."""
    num_ranks = num_nodes * ranks_per_node
    shared = os.memfd_create("epctl-test")
    processes = []
    try:
        os.ftruncate(shared, SHARED_BYTES)
        for rank in range(num_ranks):
            emulated = emulation.environment(
                num_nodes, rank // ranks_per_node, programs.plugin, share_gpus=num_ranks > num_gpus
            )
            environ = {
                **os.environ,
                **emulated,
                "NCCL_DEBUG": "WARN",
                "LD_LIBRARY_PATH": f"{programs.library.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}",
                "EPCTL_LOOPBACK_TIMEOUT_S": "20",
            }
            argv = [str(programs.driver), scenario, str(rank), str(num_ranks), str(num_gpus), str(shared), str(limit_s)]
            processes.append(
                subprocess.Popen(
                    argv, env=environ, pass_fds=(shared,), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
    finally:
        os.close(shared)
    timer = threading.Timer(limit_s + GRACE_S, lambda: [process.kill() for process in processes])
    timer.start()
    outputs = [""] * num_ranks
    # Each rank's output is read at once: a full pipe would stop a rank that the others wait for.
    readers = [threading.Thread(target=_read, args=(process, outputs, i)) for i, process in enumerate(processes)]
    for reader in readers:
        reader.start()
    try:
        for reader in readers:
            reader.join()
    finally:
        timer.cancel()
        for process in processes:
            process.kill()
            process.wait()
    return [_parsed(process, output) for process, output in zip(processes, outputs, strict=True)]


def _read(process: subprocess.Popen[str], outputs: list[str], i: int) -> None:
    outputs[i] = process.communicate()[0]


def _parsed(process: subprocess.Popen[str], output: str) -> Rank:
    rank = Rank(process.returncode, process=process.pid)
    for line in output.splitlines():
        if line.startswith('{"rank"'):
            rank.checks.append(json.loads(line))
        else:
            rank.log += line + "\n"
    return rank
