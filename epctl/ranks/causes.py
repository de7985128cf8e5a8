"""Why a rank ended, in words for its parent's user."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from msgspec.structs import replace

from epctl.ranks.child import Child
from epctl.ranks.events import Failure

_CRASH = (
    "a library or driver crashed in it",
    "run again with --debug; look at its messages above and at dmesg (Xid lines of the driver)",
)
_REASONS: dict[int, tuple[str, str]] = {
    signal.SIGKILL: (
        "the kernel ends processes like this when memory runs out; somebody may have done it, too",
        "look for 'Out of memory' in dmesg, and at the memory limit of the container or job",
    ),
    signal.SIGSEGV: _CRASH,
    signal.SIGBUS: (
        "it touched memory that is not there: /dev/shm is full, a mapped file was cut, or a device is gone",
        "look at the size of /dev/shm (df -h /dev/shm; docker run --shm-size, --ipc=host) and at dmesg",
    ),
    signal.SIGABRT: _CRASH,
    signal.SIGALRM: (
        "it stayed in this stage past its limit, and hung so that not even its watchdog could run",
        "run again with --debug; a driver call that never returns shows in dmesg",
    ),
}
_TOLD = (
    "somebody told it to (SIGTERM): a scheduler at the end of its time, an operator, or a launcher that lost another rank",
    "look at the limits of the job and at the launcher's messages",
)
_NO_REASON = ("it gave no reason", "look at its own messages above, and run again with --debug")


def died(child: Child) -> Failure:
    """Of a rank that ended without a word."""
    code = child.code or 0
    what = f'rank {child.rank} {child.fate} in stage "{child.stage}"'
    if child.code == 0:
        return Failure(
            child.rank,
            child.stage,
            f"{what}, before its work was done",
            "it left without an error",
            "report it; it is an error in epctl",
        )
    why, todo = _TOLD if code == 128 + signal.SIGTERM else _REASONS.get(-code, _NO_REASON)
    return Failure(child.rank, child.stage, what, why, todo, 4 if code == -signal.SIGALRM else 1)


def did_not_exit(child: Child, limit_s: float) -> Failure:
    """Of a rank whose process outlives its work."""
    return Failure(
        child.rank,
        child.stage,
        f'rank {child.rank} has done its work, but its process did not end within {limit_s:g} s (stage "exit")',
        "a library or the driver hangs while it is unloaded",
        "run again with --debug; look at dmesg",
        1,
    )


def told(failure: Failure) -> Failure:
    """The rank's own words, with rank and stage where they do not name them."""
    if failure.common or failure.peer is not None or f"rank {failure.rank} " in failure.what:
        return failure
    return replace(failure, what=f'{failure.what} (rank {failure.rank}, stage "{failure.stage}")')


def forced(children: Iterable[Child]) -> list[str]:
    """Which ranks did not end by themselves."""
    return [
        f'rank {child.rank} (stage "{child.stage}") did not end when it was told to, and was killed'
        for child in children
        if child.forced
    ][:4]
