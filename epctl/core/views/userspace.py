"""User-space RDMA libraries: the symbol versions that NCCL asks them for."""

from __future__ import annotations

from epctl.core.check import Seen, bad, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, value_or
from epctl.core.views import versions


def symbol_version(context: Context, library: str, wanted: str, what: str) -> Seen:
    """Does `library` define the symbol version `wanted` (IBVERBS_1.8)? `what` it is for stands in the evidence."""
    entry = next((one for one in context.node.rdma.libraries if one.name == library), None)
    if entry is None:
        return unread(f"symbol versions of {library}", Absent("not_read"))
    if isinstance(entry.path, Absent) and entry.path.absent == "not_found":
        return bad(f"{library} is not found by the loader: no {what}", fix="Install rdma-core's user-space libraries.")
    if isinstance(entry.versions, Absent):
        return unread(f"symbol versions of {library}", entry.versions)
    path = value_or(entry.path, library)
    if wanted in entry.versions:
        return good(f"{path} defines {wanted}")
    prefix = f"{wanted.rpartition('_')[0]}_"
    newest = max((one for one in entry.versions if one.startswith(prefix)), key=_order, default="none")
    return bad(f"{path} ends at {newest}, {wanted} ({what}) is missing")


def _order(version: str) -> tuple[int, ...]:
    found = versions.parse(version.rpartition("_")[2])
    return found.release if found else ()
