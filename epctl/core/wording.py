"""How evidence is worded: counts, and one line for GPUs of which the same is to be said."""

from __future__ import annotations

import re
from collections.abc import Iterable

from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot

_OF_GPU = re.compile(r"(GPU|CUDA device) (\d{1,4})(?=[ :])(.*)", re.ASCII | re.DOTALL)
_NVML = re.compile(r"\bNVML\b")


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 line`, `2 lines`. `plural` where an s at the end does not make it."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def ranges(numbers: Iterable[int]) -> str:
    """`0-3, 7`: numbers in ascending order, runs of them put together."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}-{last}" if first != last else str(first) for first, last in runs)


def grouped(texts: Iterable[str]) -> tuple[str, ...]:
    """Lines that say the same of several GPUs as one, where the first of them stood: `GPU 0-7: no slowdown`."""
    lines: dict[tuple[str, str], list[int]] = {}
    for text in texts:
        found = _OF_GPU.fullmatch(text)
        key = (found.group(1), found.group(3)) if found else ("", text)
        lines.setdefault(key, []).extend([int(found.group(2))] if found else [])
    return tuple(f"{kind} {ranges(numbers)}{rest}" if kind else rest for (kind, rest), numbers in lines.items())


def by_reader(text: str, node: Snapshot) -> str:
    """Checks name NVML for what they know of GPUs. Where nobody asked it, these facts come from what nvidia-smi printed."""
    from_text = isinstance(node.gpu.driver.nvml_code, Absent) and isinstance(node.gpu.gpus, tuple)
    return _NVML.sub("nvidia-smi", text) if from_text else text
