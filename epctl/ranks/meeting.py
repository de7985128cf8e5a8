"""Where the ranks of a job meet, exchange small values, and wait for each other with limits that name who is missing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from epctl.core.errors import EpctlError
from epctl.core.placement import Placement
from epctl.ranks import beats as signs
from epctl.ranks import facts as words
from epctl.ranks import roll
from epctl.ranks import store as stores
from epctl.ranks.beats import Beats, Ended
from epctl.ranks.facts import Facts
from epctl.ranks.roll import PeerEndedError

LIMIT_S = 60.0
_LOOK_S = 0.3
"""A wait finds out this often for whom it waits."""
_LEAVE_S = 10.0
"""How long rank 0 keeps the store for ranks that have not left yet, after a good end."""
_LEAVE_FAILED_S = 2.0


class Meeting:
    """All ranks of a job, connected through one store. Made by `join`; `close` ends it."""

    def __init__(self, store: Any, place: Placement, called: list[Facts], prefix: str, *, silent_s: float) -> None:  # noqa: ANN401
        self.placement = words.settled(place, called)
        self.roll = tuple(sorted(called, key=lambda facts: facts.rank))
        """What the ranks said when they joined, by rank."""
        self.limit_s = LIMIT_S
        self.keeps_store = place.rank == 0 and not place.hosted
        self._store = store
        self._prefix = prefix
        self._round = 0
        self._closed = False
        self._gathering = ""
        self._waiting: tuple[int, ...] = ()
        self.beats = Beats(store.clone(), prefix, place.rank, self.roll, silent_s=silent_s)
        self.beats.start()

    @classmethod
    def join(
        cls,
        place: Placement,
        limit_s: float = LIMIT_S,
        *,
        listen_fd: int | None = None,
        silent_s: float = signs.SILENT_S,
        run_idx: int = 0,
    ) -> Meeting:
        """Comes to the meeting point and waits until all ranks are there. Raises EpctlError that names the ranks that are missing
        after `limit_s`, ranks that are there twice, and ranks of another job. `listen_fd`: rank 0's socket, if there is one.
        `run_idx` counts the jobs of one process, for a store that outlives them."""
        deadline = time.monotonic() + limit_s
        store = stores.keep(place, listen_fd) if place.rank == 0 and not place.hosted else stores.visit(place, limit_s)
        prefix = f"epctl/{place.job_id}/{run_idx}/"
        try:
            store.set(f"{prefix}beat/{place.rank}", "0")
            store.append(f"{prefix}roll", msgspec.json.encode(words.own(place)).decode("utf-8", "replace") + "\n")
            store.add(f"{prefix}joined", 1)
            try:
                called = roll.called(store, prefix, place, deadline, limit_s)
            except PeerEndedError:
                raise
            except EpctlError as error:
                signs.tell(store, prefix, Ended(place.rank, roll.GAVE_UP + error.what, "join"))
                if place.rank == 0:
                    time.sleep(_LEAVE_FAILED_S / 2)  # the others read it before the store goes
                raise
        except RuntimeError as error:
            raise roll.lost(place, error) from None
        return cls(store, place, called, prefix, silent_s=silent_s)

    def put(self, key: str, value: bytes) -> None:
        """Makes a value known under a key. Raises EpctlError when the meeting is over."""
        self._ask(lambda: self._store.set(f"{self._prefix}value/{key}", value))

    def get(self, key: str, limit_s: float | None = None) -> bytes:
        """The value of a key, which some rank puts within `limit_s`. Raises EpctlError that names the key."""
        limit_s = self.limit_s if limit_s is None else limit_s
        whole = f"{self._prefix}value/{key}"
        if not self._wait([whole], limit_s):
            raise EpctlError(
                f"no rank gave {key} to rank {self.placement.rank} within {limit_s:g} s",
                "the rank that gives it hangs, or took another way",
                "run again with --debug, which shows where each rank stood",
                exit_code=4,
            )
        return bytes(self._ask(lambda: self._store.get(whole)))

    def all_gather(self, stage: str, value: bytes, limit_s: float | None = None) -> list[bytes]:
        """Every rank's value, by rank. All ranks call it, and in the same order. Raises EpctlError that names who did not come to the
        stage, or is in another one."""
        limit_s = self.limit_s if limit_s is None else limit_s
        self._round += 1
        mine = self._key(self._round, self.placement.rank)
        self._ask(lambda: self._store.set(mine, stage.encode("utf-8", "replace") + b"\0" + value))
        keys = [self._key(self._round, rank) for rank in range(self.placement.world_size)]
        self._gathering = stage
        if not self._wait(keys, limit_s):
            raise self._missing(stage, keys, limit_s)
        self._gathering = ""
        found = [bytes(entry).partition(b"\0") for entry in self._ask(lambda: self._store.multi_get(keys))]
        # Who has come to this round has read all of the one before.
        self._ask(lambda: self._store.delete_key(self._key(self._round - 1, self.placement.rank)))
        elsewhere = [rank for rank, (name, _, _) in enumerate(found) if name != stage.encode("utf-8", "replace")]
        if elsewhere:
            other = found[elsewhere[0]][0].decode("utf-8", "replace")
            raise EpctlError(
                f'rank {self.placement.rank} is in stage "{stage}", but {words.named(elsewhere)} in "{other}"',
                "the ranks have taken different ways through the program",
                "check that all ranks have the same environment; else this is an error in epctl, please report it",
                exit_code=1,
            )
        return [payload for _, _, payload in found]

    def arrive(self, stage: str, limit_s: float | None = None) -> None:
        """Waits until every rank has come to `stage`. Raises EpctlError that names the missing ones after `limit_s`."""
        self.all_gather(stage, b"", limit_s)

    def verify(
        self, facts: Facts, *, several_ranks_a_gpu: bool = False, limit_s: float | None = None
    ) -> tuple[Facts, ...]:
        """Compares what all ranks say, and gives it, by rank. Raises the same EpctlError on every rank when it is not one job with one
        version of everything, and one GPU a rank."""
        told = self.all_gather("verify the job", msgspec.json.encode(facts), limit_s)
        every = tuple(msgspec.json.decode(entry, type=Facts) for entry in told)
        words.verify(every, several_ranks_a_gpu=several_ranks_a_gpu)
        return every

    def send(self, key: str, value: bytes, counter: str) -> None:
        """Puts a value for the machinery of ranks, and counts it."""
        self._ask(lambda: self._store.set(f"{self._prefix}{key}", value))
        self._ask(lambda: self._store.add(f"{self._prefix}{counter}", 1))

    def note_stage(self, stage: str) -> None:
        """Lets the others know where this rank is, for messages about it."""
        if not self._closed:
            self._ask(lambda: self._store.set(f"{self._prefix}stage/{self.placement.rank}", stage))

    def tell_end(self, ended: Ended) -> None:
        """Lets all ranks know that one has ended; says nothing when the store is gone."""
        if ended.rank != self.placement.rank:
            self.beats.add(ended)
        store = self._store
        if store is not None:
            with contextlib.suppress(RuntimeError):
                signs.tell(store, self._prefix, ended)

    @property
    def prefix(self) -> str:
        """Of all keys of this job in the store."""
        return self._prefix

    @property
    def connection(self) -> Any:  # noqa: ANN401 - a TCPStore
        """The store, for what belongs to the machinery of ranks."""
        return self._store

    def peer_ended(self) -> Ended | None:
        """The first other rank that is known to have ended, if one has."""
        if self.beats.ended:
            return self.beats.ended[0]
        return Ended(0, f"has not answered for {self.beats.silent_s:g} s") if self.beats.silent_store else None

    def waits_for(self) -> tuple[str, int] | None:
        """While this rank has waited for others for a while: in words for whom, and the first of them."""
        waiting = self._waiting
        return (
            (f'{words.named(waiting)} to come to "{self._gathering}"', waiting[0])
            if waiting and self._gathering
            else None
        )

    def close(self, *, failed: bool = False) -> None:
        """Says goodbye. Rank 0 stays until the others have left, or a moment after a failure, since it keeps the store."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(RuntimeError):
            self._store.set(f"{self._prefix}left/{self.placement.rank}", "1")
            if self.keeps_store:
                self._see_off(_LEAVE_FAILED_S if failed else _LEAVE_S)
        self.beats.stop()
        self._store = None

    def _see_off(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        waiting = set(range(self.placement.world_size))
        while waiting and time.monotonic() < deadline:
            waiting -= {ended.rank for ended in self.beats.ended}
            waiting = {rank for rank in waiting if not self._store.check([f"{self._prefix}left/{rank}"])}
            if waiting:
                time.sleep(roll.POLL_S[1])

    def _key(self, number: int, rank: int) -> str:
        return f"{self._prefix}round/{number}/{rank}"

    def _wait(self, keys: list[str], limit_s: float) -> bool:
        """All keys are there. False after the limit. Raises PeerEndedError. Polls: TCPStore's own wait prints to standard error when it is
        over, and cannot be left early."""
        deadline = time.monotonic() + limit_s
        look_at = time.monotonic() + _LOOK_S
        pause_s = roll.POLL_S[0]
        try:
            while not self._ask(lambda: self._store.check(keys)):
                ended = self.peer_ended()
                if ended is not None:
                    raise PeerEndedError(ended)
                now = time.monotonic()
                if now >= deadline:
                    return bool(self._ask(lambda: self._store.check(keys)))
                if now >= look_at:
                    look_at = now + _LOOK_S
                    self._waiting = tuple(self._absent(keys))
                time.sleep(pause_s)
                pause_s = min(pause_s * 1.5, roll.POLL_S[1])
        finally:
            self._waiting = ()
        return True

    def _absent(self, keys: list[str]) -> list[int]:
        """Which of the keys are not there."""
        return [idx for idx, key in enumerate(keys) if not self._ask(partial(self._store.check, [key]))]

    def _missing(self, stage: str, keys: list[str], limit_s: float) -> EpctlError:
        missing = self._absent(keys)
        last = [(rank, self._ask(partial(signs.stage_of, self._store, self._prefix, rank))) for rank in missing[:4]]
        seen = "; ".join(
            f'rank {rank} ({self.roll[rank].host}) was last in stage "{name or "join"}"' for rank, name in last
        )
        return EpctlError(
            f'{words.named(missing)} did not come to stage "{stage}" within {limit_s:g} s',
            seen or "they came a moment too late",
            "look at the messages of these ranks; run again with --debug, which shows where each rank stood",
            exit_code=4,
        )

    def _ask(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the store gives
        if self._store is None:
            raise RuntimeError("the meeting is closed")
        try:
            return call()
        except RuntimeError as error:  # the connection is gone: who ended is known, or it is the keeper of the store
            ended = self.peer_ended()
            raise PeerEndedError(ended) if ended is not None else roll.lost(self.placement, error) from None
