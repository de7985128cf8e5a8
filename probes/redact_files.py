"""Texts in which identifiers stand in a form of their own, or that say more of a site than a support case needs."""

from __future__ import annotations

import re
from collections.abc import Callable

from epctl.probes.kernel_log import trimmed
from epctl.probes.redactor import Redactor

_ROUTE = re.compile(r"^(\S+\s+)([0-9A-F]{8})(\s+)([0-9A-F]{8})(?=\s)", re.M)
_ADDRESS6 = re.compile(r"\b[0-9a-f]{32}\b")
_BARE_GUID = re.compile(r"(?<![\w.])(?!0{4})[0-9a-fA-F]{16}(?!\w)", re.ASCII)
_BUILDER = re.compile(r"\([^()\s@]*@[^()\s]*\)")
_BOOT_WORDS = re.compile(
    r"(?:intel_|amd_)?iommu|pci|nvidia|nv_|hugepages|default_hugepagesz|transparent_hugepage|numa|mitigations|init_on_alloc"
    r"|isolcpus|nohz|processor\.|intel_idle|idle=|swiotlb|cgroup|systemd\.unified|module_blacklist|modprobe"
)


def _route(redactor: Redactor, text: str) -> str:
    """/proc/net/route: addresses are eight hex digits, lowest byte first."""

    def swap(word: str) -> str:
        made = redactor.ipv4(".".join(str(int(word[i : i + 2], 16)) for i in (6, 4, 2, 0)))
        return "".join(f"{int(octet):02X}" for octet in reversed(made.split(".")))

    return _ROUTE.sub(lambda row: row[1] + swap(row[2]) + row[3] + swap(row[4]), text)


def _inet6(redactor: Redactor, text: str) -> str:
    """/proc/net/if_inet6, ipv6_route: addresses are 32 hex digits; loopback, link-local and multicast stay what they are."""

    def swap(found: re.Match[str]) -> str:
        digits = found[0]
        if digits.startswith("ff") or not digits[:-1].strip("0"):
            return digits
        return redactor.gid(":".join(digits[i : i + 4] for i in range(0, 32, 4))).replace(":", "")

    return _ADDRESS6.sub(swap, text)


def _boot_words(redactor: Redactor, text: str) -> str:
    """/proc/cmdline: only the parameters that matter to PCIe, memory and the driver."""
    return redactor.text(" ".join(word for word in text.split() if _BOOT_WORDS.match(word))) + "\n"


def _builder(redactor: Redactor, text: str) -> str:
    """Versions of kernel and driver: who built them stands there as user@host."""
    return redactor.text(_BUILDER.sub("(user@host)", text))


def _kernel_log(redactor: Redactor, text: str) -> str:
    return redactor.text(trimmed(text))


def _host(redactor: Redactor, text: str) -> str:
    """A file that holds the name of the host and nothing else, however short it is."""
    return redactor.host(text.strip()) + "\n"


def _fabric(redactor: Redactor, text: str) -> str:
    """ibnetdiscover: GUIDs stand there as bare hex digits too, even ones without a letter."""
    return redactor.text(_BARE_GUID.sub(lambda found: redactor.guid(found[0]), text))


FORMS: dict[str, Callable[[Redactor, str], str]] = {
    "/etc/hostname": _host,
    "/proc/sys/kernel/hostname": _host,
    "/proc/net/route": _route,
    "/proc/net/if_inet6": _inet6,
    "/proc/net/ipv6_route": _inet6,
    "/proc/cmdline": _boot_words,
    "/proc/version": _builder,
    "/proc/driver/nvidia/version": _builder,
    "dmesg": _kernel_log,
    "journalctl": _kernel_log,
    "ibnetdiscover": _fabric,
}
"""Path or tool → what replaces `Redactor.text` for it."""
