"""/proc/modules, for every probe that asks which kernel modules are loaded."""

from __future__ import annotations

import re

from epctl.core.fact import Absent, Fact
from epctl.core.snapshot.host import KernelModule
from epctl.probes.documents import text_of
from epctl.probes.source import Source, text

MAX_MODULES = 4096
UNCOUNTED = Absent("unsupported", "this kernel cannot unload modules and keeps no count of users")
"""A kernel without CONFIG_MODULE_UNLOAD prints `-` for both."""


def modules(source: Source) -> Fact[tuple[KernelModule, ...]]:
    """Loaded modules: `name size users used,by, state …` a line."""
    found = text(source, "/proc/modules")
    if isinstance(found, Absent):
        return found
    loaded = [module for line in found.splitlines()[:MAX_MODULES] if (module := _module(line.split())) is not None]
    if found and not loaded:
        return Absent("unparsable", "/proc/modules holds no module", text_of(found.partition("\n")[0])[:80])
    return tuple(loaded)


def _module(fields: list[str]) -> KernelModule | None:
    if len(fields) < 4 or not re.fullmatch(r"\d{1,12}", fields[1], re.ASCII):
        return None
    name = text_of(fields[0]).replace("-", "_")
    if fields[2] == "-":
        return KernelModule(name, UNCOUNTED, UNCOUNTED)
    if not re.fullmatch(r"-?\d{1,9}", fields[2], re.ASCII):
        return None
    used_by = tuple(text_of(user) for user in fields[3].split(",") if user and user != "-" and not user.startswith("["))
    return KernelModule(name, int(fields[2]), used_by)
