"""Buffers that cases of one run share: making one registers memory on all ranks, which takes far longer than a small case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from msgspec import Struct

from epctl.comm.domain import Domain, of_world
from epctl.core.op import World
from epctl.ops.ep.buffer import EPBuffer

MAX_BYTES = 8 << 30
"""Symmetric memory that unused buffers may hold on to."""
TOKENS, TOPK = (128, 1024, 4096, 8192, 16384), (8, 16)
"""Sizes that buffers are made for: cases with fewer share one."""
CPU_TIMEOUT_S = 20.0


class Key(Struct, frozen=True):
    """What a buffer is made for; equal on all ranks."""

    max_tokens: int
    hidden: int
    num_topk: int
    every_row: bool = False
    fp8_only: bool = False
    number: int = 0
    """Of several alike, for cases that use two at once."""


def key_for(
    max_tokens: int, hidden: int, num_topk: int, *, every_row: bool = False, fp8_only: bool = False, number: int = 0
) -> Key:
    """The key of a buffer with room for that, rounded up so that cases share it."""
    tokens = next((size for size in TOKENS if size >= max_tokens), max_tokens)
    topk = next((size for size in TOPK if size >= num_topk), num_topk)
    return Key(tokens, hidden, topk, every_row, fp8_only, number)


class Pool:
    """Of one domain. All ranks ask for the same buffers in the same order."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._buffers: dict[Key, EPBuffer] = {}
        self._broken = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Around calls: an error in the middle of them leaves the buffer in a state that no other case may meet."""
        try:
            yield
        except Exception:
            self._broken = True
            raise

    def get(self, key: Key) -> EPBuffer:
        """The buffer of that key; others that were not used for longest are given back when they need too much. Collective."""
        found = self._buffers.pop(key, None)
        if found is None:
            found = EPBuffer(
                None,
                None,
                key.max_tokens,
                key.hidden,
                key.num_topk,
                use_fp8_dispatch=key.fp8_only,
                allow_multiple_reduction=not key.every_row,
                num_cpu_timeout_secs=CPU_TIMEOUT_S,
                explicitly_destroy=True,
                domain=self._domain,
            )
        self._buffers[key] = found
        held = sum(one.num_bytes for one in self._buffers.values())
        for old in list(self._buffers)[:-2]:
            if held > MAX_BYTES:
                held -= self._buffers[old].num_bytes
                self._buffers.pop(old).destroy()
        return found

    def heal(self, world: World) -> bool:
        """After a wait that gave up on some rank, or an error between calls, counters of the ranks differ: all buffers are given back,
        and kernels wait again. Collective; True when that was so."""
        mine = b"1" if self._broken or self._domain.timeout() is not None else b""
        self._broken = False
        if not any(self._domain.control.all_gather("whether buffers are well", mine)):
            return False
        world.torch.cuda.synchronize(self._domain.device_idx)
        for one in self._buffers.values():
            one.destroy()
        self._buffers.clear()
        self._domain.clear()
        self._domain.control.all_gather("kernels may wait again", b"")
        return True


_pools: WeakKeyDictionary[Domain, Pool] = WeakKeyDictionary()


def pool_of(world: World) -> Pool:
    """The pool of the world's domain. Raises EpctlError without one."""
    domain = of_world(world)
    if domain not in _pools:
        _pools[domain] = Pool(domain)
    return _pools[domain]
