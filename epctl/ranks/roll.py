"""The roll of a job that meets: who has come, and whether these are the ranks of one job."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from epctl.core.errors import EpctlError
from epctl.core.placement import Placement
from epctl.ranks import beats as signs
from epctl.ranks.beats import Ended
from epctl.ranks.facts import Facts, named

GAVE_UP = "gave up: "
"""How the reason begins of a rank that left before the job came together; what follows holds for all."""
POLL_S = (0.0005, 0.02)


class PeerEndedError(EpctlError):
    """Another rank ended, so that this one cannot go on."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(
            str(ended),
            "the others cannot go on without it",
            "look at that rank's own messages above, and at its node's kernel log (dmesg)",
            exit_code=1,
        )
        self.rank = ended.rank


def called(store: Any, prefix: str, place: Placement, deadline: float, limit_s: float) -> list[Facts]:  # noqa: ANN401
    """The roll, once everybody is on it."""
    roll: list[Facts] = []
    seen, pause_s = -1, POLL_S[0]
    while True:
        joined = store.add(f"{prefix}joined", 0)
        if joined != seen:
            seen = joined
            roll = [msgspec.json.decode(line, type=Facts) for line in store.get(f"{prefix}roll").splitlines()]
            _one_job(roll, place)
            if len(roll) == place.world_size:
                return roll
        ended = next((entry for entry in signs.told(store, prefix) if entry.rank != place.rank), None)
        if ended is not None:
            raise _gave_up(ended) if ended.reason.startswith(GAVE_UP) else PeerEndedError(ended)
        if time.monotonic() >= deadline:
            raise _absent(roll, place, limit_s)
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, POLL_S[1])


def _gave_up(ended: Ended) -> EpctlError:
    return EpctlError(
        ended.reason.removeprefix(GAVE_UP),
        f"rank {ended.rank} found it out first, and left",
        "look at the message of that rank, which tells more",
        exit_code=4,
    )


def _one_job(roll: list[Facts], place: Placement) -> None:
    first: dict[int, Facts] = {}
    for facts in roll:
        other = first.setdefault(facts.rank, facts)
        if facts.world_size != place.world_size:
            raise EpctlError(
                f"{facts.where} belongs to a job of {facts.world_size} ranks, rank {place.rank} to one of {place.world_size}",
                f"both came to {place.address}:{place.port}",
                "start every node with the same number of ranks, and give each job a MASTER_PORT of its own",
            )
        if other is not facts:
            raise EpctlError(
                f"rank {facts.rank} is there twice: on {other.host} (process {other.pid}) and on {facts.host} (process {facts.pid})",
                "the job was started twice with one meeting point, or it has split into jobs that all count from 0",
                "start one process for each rank; give each job a MASTER_PORT of its own",
            )


def _absent(roll: list[Facts], place: Placement, limit_s: float) -> EpctlError:
    there = {facts.rank for facts in roll}
    missing = [rank for rank in range(place.world_size) if rank not in there]
    hosts = ", ".join(dict.fromkeys(facts.host for facts in roll))
    return EpctlError(
        f"{named(missing)} of {place.world_size} did not join at {place.address}:{place.port} within {limit_s:g} s",
        f"{len(there)} ranks are there, on {hosts}; the job has fewer ranks than its launcher says, or has split",
        "check that all nodes were started, with the same MASTER_ADDR and MASTER_PORT, and look at the missing ranks' messages",
        exit_code=4,
    )


def lost(place: Placement, error: Exception) -> EpctlError:
    keeper = "torchrun's agent" if place.hosted else "rank 0"
    first = (str(error).splitlines() or [type(error).__name__])[0]
    if place.rank == 0:
        return EpctlError("the store of the meeting does not answer", first, "run again with --debug", exit_code=1)
    if place.hosted:
        return EpctlError(
            f"{keeper} ended, or its connection did",
            f"it keeps the meeting point: {first}",
            "look at torchrun's messages",
            exit_code=1,
        )
    return PeerEndedError(Ended(0, "ended, or its connection did: the meeting point that it keeps is gone"))
