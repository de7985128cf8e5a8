"""Whether this process may make queues through DevX, as GIN GDAKI and IBGDA do: what the active probe of verbs found."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Seen, bad, good, unread
from epctl.core.fact import Absent, value_or
from epctl.core.snapshot import Snapshot


def seen(node: Snapshot) -> Iterator[Seen]:
    """One entry for each adapter on which it was tried; none where it was not. A refusal to open the device, or a DevX context
    on it, is an outcome, too."""
    for probe in value_or(node.active.verbs, ()):
        number = probe.devx_uar_errno
        if isinstance(number, Absent):
            if number.absent == "permission":
                yield bad(f"{probe.device}: DevX is refused ({number})")
            elif number.absent in ("failed", "timed_out", "unparsable"):  # tried, and it told nothing of rights
                yield unread(f"{probe.device}: doorbell page through DevX", number)
        elif number:
            yield bad(f"{probe.device}: mlx5dv_devx_alloc_uar gives errno {number}")
        else:
            yield good(f"{probe.device}: mlx5dv_devx_alloc_uar works")


def refused(node: Snapshot) -> str:
    """The first refusal; '' without one."""
    return next((entry.text for entry in seen(node) if entry.verdict == "bad"), "")
