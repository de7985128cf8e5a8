"""What only the CUDA driver knows: start, attributes, peer copies, exportable allocations. One JSON line a finished stage, so
that a call that hangs leaves the stages before it, and the name of the one that it hangs in.

NVLink multicast is asked for as an attribute and never used; no clock or mode is touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctl.probes.collectors import _cuda_driver as cuda
else:
    sys.path.append(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120
    import _cuda_driver as cuda

COPY_BYTES = 1 << 20
ALLOCATION_BYTES = 2 << 20


def main() -> None:
    """Prints the stages; each begins with {"begin": NAME} and ends with {"stage": NAME, …}."""
    try:
        driver = cuda.Driver()
    except OSError as error:
        _tell({"stage": "init", "code": {"error": "not_found", "detail": str(error)}})
        return
    if _stage("init", lambda: {"code": driver.init()})["code"] != 0:
        return
    _stage("version", lambda: {"version": driver.version()})
    told = _stage("devices", lambda: {"devices": [device(driver, ordinal) for ordinal in range(driver.count())]})
    devices = told.get("devices", [])
    if not isinstance(devices, list) or not devices:
        return
    _stage("posix", lambda: {"code": driver.export(0, cuda.HANDLE_POSIX, ALLOCATION_BYTES)})
    if devices[0].get("fabric_handles") is True:
        _stage("fabric", lambda: {"code": driver.export(0, cuda.HANDLE_FABRIC, ALLOCATION_BYTES)})
    if len(devices) > 1:
        peers(driver, len(devices))
    _tell({"stage": "end"})


def _tell(entry: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(entry) + "\n")
    sys.stdout.flush()


def _stage(name: str, action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Announces a stage, runs it and tells its result."""
    _tell({"begin": name})
    try:
        found = action()
    except cuda.CudaError as error:
        found = {"code": error.code, "failed": error.call}
    except AttributeError as error:
        found = {"code": {"error": "unsupported", "detail": f"this libcuda lacks a call: {error}"}}
    _tell({"stage": name, **found})
    return {"code": None, **found}


def device(driver: cuda.Driver, ordinal: int) -> dict[str, Any]:
    """Attributes of one device; one that this driver does not know is {"error": code}."""
    handle = driver.device(ordinal)
    found: dict[str, Any] = {"ordinal": ordinal, "uuid": driver.uuid(handle)}
    for name, number in cuda.ATTRIBUTES.items():
        value = driver.attribute(handle, number)
        found[name] = bool(value) if isinstance(value, int) and name != "num_sms" else value
    return found


def peers(driver: cuda.Driver, count: int) -> None:
    """For every ordered pair: may `a` reach `b`, and does a pattern copied from b to a arrive unchanged?"""
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    access = {(a, b): driver.can_access(a, b) for a, b in pairs}
    _tell({"stage": "access", "pairs": [[a, b, access[a, b]] for a, b in pairs]})
    with _buffers(driver, count) as (contexts, buffers):
        for a, b in pairs:
            if access[a, b] is True and isinstance(contexts[a], int) and isinstance(contexts[b], int):
                driver.enable_peer(contexts[a], contexts[b])
        for number, (a, b) in enumerate(pairs):
            _tell({"begin": f"copy {b} to {a}"})
            _tell({"stage": "copy", "a": a, "b": b, "ok": _copied(driver, contexts, buffers, a, b, number)})


@contextlib.contextmanager
def _buffers(driver: cuda.Driver, count: int) -> Iterator[tuple[list[Any], list[int]]]:
    """Primary context and 1 MiB on every device; an error code in place of a context that cannot be had."""
    contexts: list[Any] = []
    buffers: list[int] = []
    for ordinal in range(count):
        _tell({"begin": f"context {ordinal}"})
        try:
            contexts.append(driver.retain(ordinal))
            buffers.append(driver.allocate(contexts[-1], COPY_BYTES))
        except cuda.CudaError as error:
            contexts[ordinal:] = [{"error": error.code, "detail": error.call}]
            buffers[ordinal:] = [0]
    try:
        yield contexts, buffers
    finally:
        for ordinal in range(count):
            if isinstance(contexts[ordinal], int):
                driver.free(contexts[ordinal], buffers[ordinal])
                driver.release(ordinal)


def _copied(driver: cuda.Driver, contexts: list[Any], buffers: list[int], a: int, b: int, number: int) -> Any:  # noqa: ANN401
    """True when every byte arrived; each pair has a pattern of its own, so that an old copy cannot pass for a new one."""
    for context in (contexts[a], contexts[b]):
        if not isinstance(context, int):
            return context
    pattern = bytes((i * 7 + number * 13 + 1) % 251 for i in range(4096)) * (COPY_BYTES // 4096)
    try:
        driver.write(contexts[a], buffers[a], bytes(COPY_BYTES))
        driver.write(contexts[b], buffers[b], pattern)
        driver.copy_peer(buffers[a], contexts[a], buffers[b], contexts[b], COPY_BYTES)
        return driver.read(contexts[a], buffers[a], COPY_BYTES) == pattern
    except cuda.CudaError as error:
        return {"error": error.code, "detail": error.call}


if __name__ == "__main__":
    main()
