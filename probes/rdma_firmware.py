"""PCI atomic settings in the firmware of mlx5 adapters, as mlxconfig (or mstconfig) tells them to root."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from msgspec import structs

from epctl.core.fact import Absent, Fact
from epctl.core.snapshot.rdma import RdmaDevice
from epctl.probes.documents import is_int
from epctl.probes.readers import mlxconfig
from epctl.probes.reading import Reading
from epctl.probes.source import Output, Source, text
from epctl.probes.together import together

TOOLS = ("mlxconfig", "mstconfig")
PARAMETERS = ("PCI_ATOMIC_MODE", "ADVANCED_PCI_SETTINGS")
TIMEOUT_S = 4.0
_REFUSED = re.compile(r"(?:does ?n[o']t|not) support[^\n]{0,40}?\b(PCI_ATOMIC_MODE|ADVANCED_PCI_SETTINGS)\b", re.I)

Answer = tuple[Fact[int], Fact[int]]
"""PCI_ATOMIC_MODE and ADVANCED_PCI_SETTINGS."""


def with_settings(source: Source, devices: tuple[RdmaDevice, ...]) -> tuple[RdmaDevice, ...]:
    """`devices` with the two settings; the functions of one card share them, so each card is asked once."""
    refusal = _refusal(source)
    cards = {
        _card(device): device.pci for device in devices if _why_not(device) is None and isinstance(device.pci, str)
    }
    answers: dict[str, Any] = {}
    if refusal is None:
        answers = together({card: _question(source, pci) for card, pci in cards.items()}, num_threads=4)
    return tuple(
        _with(device, _why_not(device) or refusal or answers.get(_card(device), Absent("not_read")))
        for device in devices
    )


def _question(source: Source, pci: str) -> Callable[[], Answer]:
    return lambda: ask(source, pci)


def _with(device: RdmaDevice, answer: Answer | Absent) -> RdmaDevice:
    mode, advanced = (answer, answer) if isinstance(answer, Absent) else answer
    return structs.replace(device, pci_atomic_mode=mode, advanced_pci_settings=advanced)


def _card(device: RdmaDevice) -> str:
    return device.pci.rpartition(".")[0] if isinstance(device.pci, str) else ""


def _why_not(device: RdmaDevice) -> Absent | None:
    if isinstance(device.driver, Absent):
        return Absent("not_read", "the adapter's driver is not known")
    if device.driver != "mlx5_core":
        return Absent("unsupported", "a setting of mlx5 adapters")
    if isinstance(device.physfn, str):
        return Absent("unsupported", "a virtual function: the setting belongs to the physical one")
    return None if isinstance(device.pci, str) else Absent("not_read", "the adapter's PCI address is not known")


def _refusal(source: Source) -> Absent | None:
    """mlxconfig opens the card's configuration space, which the kernel leaves to root."""
    status = text(source, "/proc/self/status")
    found = re.search(r"^Uid:\s+\d{1,10}\s+(\d{1,10})", status, re.ASCII | re.M) if isinstance(status, str) else None
    return Absent("permission", "mlxconfig needs root") if found and int(found.group(1)) else None


def ask(source: Source, pci: str) -> Answer:
    """The two settings of the card at `pci`; when the firmware knows one of them only, the other is unsupported."""
    answer = _run(source, pci, PARAMETERS)
    if isinstance(answer, Absent):
        return answer, answer
    refused = _refused(answer)
    if refused is None:
        return _value(answer, PARAMETERS[0]), _value(answer, PARAMETERS[1])
    kept = next(name for name in PARAMETERS if name != refused)
    again = _run(source, pci, (kept,))
    value = again if isinstance(again, Absent) else _value(again, kept)
    missing = Absent("unsupported", f"the firmware does not offer {refused}")
    return (value, missing) if kept == PARAMETERS[0] else (missing, value)


def _run(source: Source, pci: str, names: tuple[str, ...]) -> Output | Absent:
    why: Output | Absent = Absent("tool_missing", "neither mlxconfig nor mstconfig is on PATH")
    for tool in TOOLS:
        why = source.run(tool, "-d", pci, "-e", "q", *names, timeout_s=TIMEOUT_S)
        if not isinstance(why, Absent) or why.absent not in ("tool_missing", "not_read"):
            return why
    return why


def _refused(answer: Output) -> str | None:
    """The parameter that the tool's error names."""
    message = (answer.stdout[:4096] + b"\n" + answer.stderr[:4096]).decode("utf-8", "replace")
    found = _REFUSED.search(message)
    return found.group(1).upper() if found else None


def _value(answer: Output, name: str) -> Fact[int]:
    """Current value; that of the next boot where the tool is too old to print the current one."""
    read: Reading[mlxconfig.Facts] = mlxconfig.read(answer.raw)
    for device in read.facts.devices:
        param = device.params.get(name)
        value = (param.current or param.next_boot) if param else None
        if value is not None and is_int(value.value):
            return value.value  # type: ignore[return-value]
    if _refused(answer) == name:
        return Absent("unsupported", f"the firmware does not offer {name}")
    if read.error is not None:
        kind = "permission" if read.error.get("kind") == "permission" else "failed"
        return Absent(kind, "mlxconfig ended with an error", str(read.error.get("message", ""))[:200])  # type: ignore[arg-type]
    line = read.problems[0].line if read.problems else ""
    return Absent("unparsable", f"mlxconfig printed no value of {name}", line)
