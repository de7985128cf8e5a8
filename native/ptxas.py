"""What `ptxas -v` says about kernels, and the refusal of those that keep variables in local memory."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from epctl.core.errors import EpctlError

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for 'sm_(\w+)'")
_FUNCTION = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(.*)")
_NUMBERED = re.compile(r"(\d+) bytes (smem|lmem|cumulative stack size)|used (\d+) barriers")


class Use(Struct, frozen=True):
    """What one function needs. Functions that a kernel calls are listed like kernels, with `registers` 0."""

    function: str
    architecture: str
    """90a"""
    registers: int = 0
    barriers: int = 0
    shared_bytes: int = 0
    """Static shared memory."""
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    local_bytes: int = 0

    @property
    def most_local_bytes(self) -> int:
        """Of a thread; the places of spills are a part of the stack frame."""
        return max(self.stack_bytes, self.spill_store_bytes, self.spill_load_bytes, self.local_bytes)

    def in_local_memory(self) -> str:
        """What of it lies in local memory, in words; '' when nothing does."""
        parts = {
            "stack": self.stack_bytes,
            "spill stores": self.spill_store_bytes,
            "spill loads": self.spill_load_bytes,
            "local memory": self.local_bytes,
        }
        return ", ".join(f"{number} bytes of {name}" for name, number in parts.items() if number)


def parse(told: str) -> tuple[Use, ...]:
    """Kernels and functions in the order of the text."""
    found: dict[str, Use] = {}
    entry, function, architecture = "", "", ""
    for line in told.splitlines():
        if match := _ENTRY.search(line):
            entry, architecture = match.group(1), match.group(2)
            function = entry
            found.setdefault(entry, Use(entry, architecture))
        elif match := _FUNCTION.search(line):
            function = match.group(1)
            found.setdefault(function, Use(function, architecture))
        elif (match := _FRAME.search(line)) and function:
            stack, stores, loads = map(int, match.groups())
            found[function] = replace(
                found[function], stack_bytes=stack, spill_store_bytes=stores, spill_load_bytes=loads
            )
        elif (match := _USED.search(line)) and entry:
            found[entry] = _used(found[entry], int(match.group(1)), match.group(2))
    return tuple(found.values())


def _used(use: Use, registers: int, rest: str) -> Use:
    numbers = {
        match.group(2) or "barriers": int(match.group(1) or match.group(3)) for match in _NUMBERED.finditer(rest)
    }
    return replace(
        use,
        registers=registers,
        barriers=numbers.get("barriers", 0),
        shared_bytes=numbers.get("smem", 0),
        local_bytes=numbers.get("lmem", 0),
        stack_bytes=max(use.stack_bytes, numbers.get("cumulative stack size", 0)),
    )


def check(uses: tuple[Use, ...], kernels: tuple[str, ...], what: str, allowed_bytes: int = 0) -> None:
    """Raises EpctlError when a function keeps more than `allowed_bytes` in local memory, or when ptxas said nothing about one of
    `kernels`."""
    told = {use.function for use in uses if use.registers}
    missing = [kernel for kernel in kernels if kernel not in told]
    if missing:
        raise EpctlError(
            f"ptxas says nothing about {missing[0]}",
            f"{what} was compiled, and its report names {', '.join(sorted(told)) or 'no kernel'}",
            "report this to the authors of epctl, with the version of nvcc",
            exit_code=1,
        )
    bad = [f"{use.function}: {use.in_local_memory()}" for use in uses if use.most_local_bytes > allowed_bytes]
    if bad:
        limit = f" ({allowed_bytes} bytes are allowed)" if allowed_bytes else ""
        raise EpctlError(
            f"{what} keeps variables in local memory",
            "; ".join(bad) + limit,
            "report this to the authors of epctl, with the version of nvcc; another CUDA toolkit may do better",
            exit_code=1,
        )
