"""The GIN canary: two ranks in processes of their own, which try each type of GIN that NCCL offers. One JSON line a finding.

Whatever hangs is ended from here after the limit of its stage, and is a finding; the types after it get new processes.
"""
# os.path throughout: the module is a script, and fast to start with.
# ruff: noqa: PTH112, PTH118, PTH120

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctl.probes.collectors import _cuda_driver as cuda
    from epctl.probes.collectors import _gin_pair as pair
else:
    sys.path.append(os.path.dirname(os.path.realpath(__file__)))
    import _cuda_driver as cuda
    import _gin_pair as pair

TOTAL_S = 78.0


def main() -> None:
    """Prints {"stage": "trial", …} for each type that was tried, then {"stage": "end"} or {"stage": "failed", …}."""
    _find_epctl()
    try:
        driver = cuda.Driver()
        num_devices = driver.count() if driver.init() == 0 else 0
    except (OSError, cuda.CudaError) as error:
        _tell({"stage": "failed", "error": "not_found", "detail": f"no CUDA driver: {error}"})
        return
    if not num_devices:
        _tell({"stage": "failed", "error": "unsupported", "detail": "the CUDA driver shows no GPU"})
        return
    from epctl.core.errors import EpctlError

    try:
        environs = environments(dict(os.environ), num_devices)
    except EpctlError as error:
        _tell({"stage": "failed", "error": "failed", "detail": f"{error.what}: {error.why}"})
        return
    devices = (0, 1 % num_devices)
    for line in pair.canary(commands(devices), environs, time.monotonic() + TOTAL_S):
        _tell(line)


def _find_epctl() -> None:
    """The package that this script belongs to; its folder's modules have names of their own, and are not to come first."""
    here = os.path.dirname(os.path.realpath(__file__))
    above = os.path.dirname(os.path.dirname(here))
    checkout = os.path.isdir(os.path.join(above, "epctl"))
    sys.path.insert(0, above if checkout else os.path.dirname(above))


def _tell(entry: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(entry) + "\n")
    sys.stdout.flush()


def environments(environ: dict[str, str], num_devices: int) -> tuple[dict[str, str], dict[str, str]]:
    """Of the two ranks. Raises EpctlError when nodes are to be emulated and the plugin cannot be built, or when nobody can tell
    whether they are."""
    base = dict(environ)
    asked = base.pop(pair.EMULATE, "").strip()
    base["PYTHONPATH"] = os.pathsep.join(filter(None, (sys.path[0], base.get("PYTHONPATH", ""))))
    if num_devices == 1:
        base.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    if asked in ("", "0", "1"):
        return base, base
    if asked != "2":
        from epctl.core.errors import EpctlError

        raise EpctlError(f"{pair.EMULATE}={asked}", "the canary has two ranks, which can play 2 nodes", "set it to 2")
    base[pair.EMULATE] = asked
    from epctl.native import emulation, loopback_plugin

    plugin = loopback_plugin.obtain()
    share_gpus = num_devices == 1
    first, second = (base | emulation.environment(2, i, plugin, share_gpus=share_gpus) for i in range(2))
    return first, second


def commands(devices: tuple[int, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """How the ranks are started; the types to leave out and the seed come behind."""
    code = "import sys; sys.path.append(sys.argv.pop(1)); import _gin_rank; _gin_rank.main()"
    folder = os.path.dirname(os.path.realpath(__file__))
    first, second = ((sys.executable, "-W", "ignore", "-c", code, folder, str(i), str(devices[i])) for i in range(2))
    return first, second


if __name__ == "__main__":
    main()
