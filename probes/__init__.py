"""Probes: they ask a Source and fill the snapshot. Nothing past them runs a command, opens sysfs or calls NVML."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from importlib import import_module
from typing import Any

from epctl import __version__
from epctl.core.fact import NOT_PROBED, Absent
from epctl.core.snapshot import Origin, Snapshot
from epctl.core.snapshot.gpu import GpuArea
from epctl.core.snapshot.host import HostArea, PcieArea
from epctl.core.snapshot.rdma import GdrArea, RdmaArea
from epctl.core.snapshot.software import ActiveArea, EnvArea, SoftwareArea
from epctl.probes.once import OnceSource
from epctl.probes.source import Source

AREAS: dict[str, Callable[[], Any]] = {
    "host": HostArea,
    "gpu": GpuArea,
    "pcie": PcieArea,
    "rdma": RdmaArea,
    "gdr": GdrArea,
    "software": SoftwareArea,
    "env": EnvArea,
    "active": ActiveArea,
}
"""Area of the snapshot → its empty form. `epctl.probes.<area>` has a function of the same name that fills it from a Source."""

STATIC_LIMIT_S = 30.0
ACTIVE_LIMIT_S = 90.0
"""Last resort: every command and collector has a shorter limit of its own; only a read that blocks in the kernel gets this far."""


def take(source: Source, origin: Origin, *, active: bool = True, taken_at: str = "") -> Snapshot:
    """A snapshot of what `source` shows, its areas read concurrently. Never raises and never waits past the limits: an area
    whose probe fails or hangs keeps its empty form, and a note in `notes` says so. `active` False leaves the active probes out."""
    done: dict[str, Any] = {}
    once = OnceSource(source)
    wanted = [name for name in AREAS if active or name != "active"]
    threads = {name: _start(name, once, done) for name in wanted}
    begin = time.monotonic()
    for name, thread in threads.items():
        if thread is None:
            continue
        limit = ACTIVE_LIMIT_S if name == "active" else STATIC_LIMIT_S
        thread.join(max(0.0, begin + limit - time.monotonic()))
    areas = {
        name: done.get(name) or _empty(name, Absent("timed_out", f"the probe of area {name} did not end"))
        for name in wanted
    }
    if not active:
        areas["active"] = ActiveArea()
    moment = taken_at or datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Snapshot(origin=origin, taken_at=moment, epctl_version=__version__, **areas)


def _start(name: str, source: Source, done: dict[str, Any]) -> threading.Thread | None:
    """A daemon thread: one that is stuck in a kernel call must not keep the program from ending. None when the system gives no
    more threads; the area is empty then."""

    def work() -> None:
        try:
            done[name] = getattr(import_module(f"epctl.probes.{name}"), name)(source)
        except Exception as error:  # noqa: BLE001 - a probe that fails is a fact about this node
            done[name] = _empty(
                name, Absent("failed", f"the probe of area {name} failed ({type(error).__name__}: {error})")
            )

    thread = threading.Thread(target=work, name=f"probe-{name}", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the limit of processes or of memory
        done[name] = _empty(name, Absent("failed", f"the probe of area {name} could not be started: {error}"))
        return None
    return thread


def _empty(name: str, why: Absent) -> Any:  # noqa: ANN401
    """The empty form of an area, each of its facts absent for the reason `why`."""
    from msgspec import structs

    blank = AREAS[name]()
    lost = {
        field: why
        for field in blank.__struct_fields__
        if isinstance(getattr(blank, field), Absent) or getattr(blank, field) is NOT_PROBED
    }
    noted = {"notes": (str(why),)} if "notes" in blank.__struct_fields__ else {}
    return structs.replace(blank, **lost, **noted)
