"""PCI addresses in the one form that sysfs has, whatever a file wrote."""

from __future__ import annotations

import re

_BDF = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.ASCII | re.IGNORECASE)
_SHORT = re.compile(r"([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.ASCII | re.IGNORECASE)


def pci_address(text: str) -> str:
    """0000:18:00.0 for 0000:18:00.0, 00000000:18:00.0 (NVML) and 18:00.0 (lspci); '' for what is no address. A domain with more than
    four digits that matter keeps them."""
    text = text.strip()
    if found := _SHORT.fullmatch(text):
        return f"0000:{found[0]}".lower()
    found = _BDF.fullmatch(text)
    if found is None:
        return ""
    domain = found[1].lower().lstrip("0").rjust(4, "0")
    return f"{domain}:{found[2]}:{found[3]}.{found[4]}".lower()


def guid(text: str) -> str:
    """16 hex digits of a GUID that is written 0x…, with colons, or plain; '' for what is none."""
    digits = text.strip().lower().removeprefix("0x").replace(":", "")
    return digits.zfill(16) if digits and len(digits) <= 16 and re.fullmatch(r"[0-9a-f]+", digits, re.ASCII) else ""
