"""The link kernels on host memory: reads the bytes of their arguments as the GPU would, and moves what they say."""

from __future__ import annotations

import ctypes
import struct
import time
from typing import Any

import pytest

from epctl.native import waits
from epctl.ops import launcher

NUM_SMS = 4
_LINK = struct.Struct("<QQQQQII")
_PING_PONG = struct.Struct("<QQQQQIIQQII")


class _Kernel:
    def __init__(self, torch: Any, name: str, row_bytes: int, block_threads: int) -> None:  # noqa: ANN401
        self._torch, self._name = torch, name.removeprefix("epctl_link_")
        self._row_bytes, self._block_threads = row_bytes, block_threads

    def launch(self, grid: int, stream: int, arguments: bytes) -> None:  # noqa: ARG002
        if self._name == "ping_pong":
            return _ping_pong(arguments)
        target, source, addend, num_rows, sums, pattern, _ = _LINK.unpack(arguments)
        num_bytes = num_rows * self._row_bytes
        if self._name in ("bulk_copy", "vector_copy"):
            ctypes.memmove(target, source, num_bytes)
        elif num_bytes and self._name == "pull_add":
            total = (self._bf16(source, num_bytes).float() + self._bf16(addend, num_bytes).float()).bfloat16()
            ctypes.memmove(target, total.data_ptr(), num_bytes)
        elif self._name == "write":
            words = (pattern + word for word in range(num_bytes // 4))
            ctypes.memmove(target, b"".join((word % 2**32).to_bytes(4, "little") for word in words), num_bytes)
        elif self._name == "read":
            self._read(source, num_bytes, sums, grid * self._block_threads)
        return None

    def _bf16(self, address: int, num_bytes: int) -> Any:  # noqa: ANN401
        return self._torch.frombuffer(bytearray(ctypes.string_at(address, num_bytes)), dtype=self._torch.bfloat16)

    @staticmethod
    def _read(source: int, num_bytes: int, sums: int, num_threads: int) -> None:
        words = struct.unpack(f"<{num_bytes // 4}I", ctypes.string_at(source, num_bytes))
        totals = [0] * num_threads
        for idx, word in enumerate(words):
            totals[idx // 4 % num_threads] += word
        ctypes.memmove(sums, struct.pack(f"<{num_threads}I", *(total % 2**32 for total in totals)), num_threads * 4)


def _ping_pong(arguments: bytes) -> None:
    mine, theirs, begin, num_rounds, elapsed, peer, serves, record, given_up, rank, timeout_ms = _PING_PONG.unpack(
        arguments
    )
    flag, other = ctypes.c_uint64.from_address(mine), ctypes.c_uint64.from_address(theirs)
    started = time.monotonic()
    for done in range(num_rounds):
        value = begin + done + 1
        if serves:
            other.value = value
        waiting = time.monotonic()
        while flag.value < value:
            if time.monotonic() - waiting > timeout_ms / 1e3:
                told = struct.pack(
                    "<IIIIQQQQIIQ",
                    1,
                    rank,
                    peer,
                    2 if serves else 1,
                    value,
                    flag.value,
                    done,
                    timeout_ms * 10**6,
                    0,
                    0,
                    0,
                )
                assert len(told) == waits.RECORD_BYTES
                ctypes.memmove(record, told, len(told))
                ctypes.c_uint32.from_address(given_up).value = 1
                return
            time.sleep(1e-5)
        if not serves:
            other.value = value
    ctypes.c_int64.from_address(elapsed).value = int((time.monotonic() - started) * 1e9)


class _Launcher:
    def __init__(self, torch: Any) -> None:  # noqa: ANN401
        self._torch = torch

    def kernel(self, family: Any, variant: Any, name: str, block_threads: int, shared_bytes: int = 0) -> _Kernel:  # noqa: ANN401
        assert name in family.kernels
        assert variant in family.variants
        defines = dict(variant.defines)
        assert name.endswith("ping_pong") or defines["EPCTL_BLOCK_THREADS"] == block_threads
        assert shared_bytes == (defines["EPCTL_BULK_SHARED_BYTES"] if name.endswith("bulk_copy") else 0)
        return _Kernel(self._torch, name, defines["EPCTL_ROW_BYTES"], block_threads)


def play(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:  # noqa: ANN401
    """Ops of worlds on the host run their kernels as above."""
    monkeypatch.setattr(launcher, "launcher", lambda _: _Launcher(torch))
    monkeypatch.setattr(launcher, "stream", lambda _: 0)
    monkeypatch.setattr(launcher, "num_sms", lambda _: NUM_SMS)

    def copy(world: Any, target: int, source: int, num_bytes: int) -> None:  # noqa: ANN401
        ctypes.memmove(target, source, num_bytes)

    monkeypatch.setattr(launcher, "copy", copy)
