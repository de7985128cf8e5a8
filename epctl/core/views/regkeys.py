"""Registry dwords of the NVIDIA driver (NVreg_RegistryDwords), as /proc/driver/nvidia/params shows them."""

from __future__ import annotations

import re

_HARMLESS = re.compile(r"[\w.,=:+;\- ]*", re.ASCII)
"""What may stand between the quotes of a shell line; real dwords have letters, digits and 0x numbers."""


def dwords(text: str) -> dict[str, str]:
    """`"PeerMappingOverride=1;RMFoo=0x2"` → names in lower case → values."""
    pairs = (entry.partition("=") for entry in _entries(text))
    return {name.strip().lower(): value.strip() for name, _, value in pairs if name.strip()}


def merged(text: str, **wanted: str) -> str:
    """`text` with `wanted` in place of entries of the same name, all others kept; '' when it cannot be repeated in a command."""
    names = {name.lower() for name in wanted}
    kept = [entry for entry in _entries(text) if entry.partition("=")[0].strip().lower() not in names]
    joined = "".join(f"{entry};" for entry in (*kept, *(f"{name}={value}" for name, value in wanted.items())))
    return joined if _HARMLESS.fullmatch(joined) else ""


def _entries(text: str) -> list[str]:
    return [part for part in (part.strip() for part in text.strip().strip('"').split(";")) if part]
