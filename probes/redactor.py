"""Replaces what identifies a site in a recording: host and user names, addresses, GUIDs, serials, UUIDs.

The same value becomes the same stand-in everywhere, so that facts keep their relations (which port has which GID, which
interfaces share a subnet). Zero, loopback and link-local values keep their meaning. Stand-ins: host-1, user-1, 10.x.y.z,
2001:db8::…, 02:00:…, GUIDs and UUIDs that begin with zeros.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_HEX = "[0-9a-fA-F]"
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("uuid", re.compile(rf"(?<!{_HEX}){_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}(?!{_HEX})")),
    ("long_mac", re.compile(rf"(?<![0-9a-fA-F:])(?:{_HEX}{{2}}:){{19}}{_HEX}{{2}}(?![0-9a-fA-F:])")),
    ("mac", re.compile(rf"(?<![0-9a-fA-F:])(?:{_HEX}{{2}}:){{5}}{_HEX}{{2}}(?![0-9a-fA-F:])")),
    ("gid", re.compile(rf"(?<![0-9a-fA-F:])(?:{_HEX}{{4}}:){{7}}{_HEX}{{4}}(?![0-9a-fA-F:])")),
    ("guid", re.compile(rf"(?<![0-9a-fA-F:])(?:{_HEX}{{4}}:){{3}}{_HEX}{{4}}(?![0-9a-fA-F:])")),
    ("ipv6", re.compile(rf"(?<![0-9a-zA-Z:.])(?:{_HEX}{{1,4}}:){{2,7}}(?::?{_HEX}{{1,4}}){{0,6}}(?![0-9a-zA-Z:.])")),
    (
        "ipv6_short",
        re.compile(rf"(?<![0-9a-zA-Z:.]){_HEX}{{1,4}}::(?:{_HEX}{{1,4}}:){{0,5}}{_HEX}{{1,4}}(?![0-9a-zA-Z:.])"),
    ),
    ("hex32", re.compile(rf"(?<![0-9a-fA-Fx]){_HEX}{{32}}(?!{_HEX})")),
    (
        "hex16",
        re.compile(rf"(?<=0x){_HEX}{{16}}(?!{_HEX})|(?<=[SHR]-){_HEX}{{16}}(?!{_HEX})"),
    ),
    ("ipv4", re.compile(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)")),
)
_ANY = re.compile("|".join(f"(?P<{kind}>{pattern.pattern})" for kind, pattern in _PATTERNS))
_SERIAL = re.compile(
    r"""(?i)(serial(?:[ _]?number)?["']?\s*(?:\(SN\))?\s*[:=]\s*["']?(?:0x)?)([0-9A-Z][0-9A-Z-]{5,40})"""
)
HOME = re.compile(r"/(?:home|Users)/([A-Za-z0-9_.@-]{1,64})")
USER_SETTINGS = ("USER", "LOGNAME", "SLURM_JOB_USER", "SUDO_USER", "SLURM_JOB_ACCOUNT")
HOST_SETTINGS = (
    "HOSTNAME",
    "MASTER_ADDR",
    "SLURMD_NODENAME",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_SUBMIT_HOST",
    "SLURM_TOPOLOGY_ADDR",
)
_COMMON = frozenset(
    ("localhost", "root", "ubuntu", "nvidia", "none", "user", "node", "unknown", "home", "shared", "admin")
)


class Redactor:
    """One consistent replacement for one recording."""

    def __init__(self, hosts: tuple[str, ...] = (), users: tuple[str, ...] = ()) -> None:
        self._made: dict[str, dict[str, int]] = {}
        self._names: list[tuple[re.Pattern[str], str, str]] = []
        self._learn("host", hosts)
        self._learn("user", users)

    def _learn(self, kind: str, names: tuple[str, ...]) -> None:
        suffix = r"(?:\.[A-Za-z][A-Za-z0-9-]*)*" if kind == "host" else ""
        for name in sorted(set(names), key=lambda entry: (-len(entry), entry)):
            if len(name) >= 3 and name.lower() not in _COMMON and not re.fullmatch(r"[\d.:]+", name):
                pattern = re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}{suffix}(?![A-Za-z0-9])")
                self._names.append((pattern, kind, name))

    def text(self, raw: str) -> str:
        """`raw` with every identifier replaced."""
        for pattern, kind, name in self._names:
            raw = pattern.sub(self._stand_in(kind, name), raw)
        raw = _SERIAL.sub(lambda found: found.group(1) + self._stand_in("serial", found.group(2)), raw)
        # One pass over all forms: a stand-in must not be taken for an identifier of the next form.
        return _ANY.sub(lambda found: self._replace(str(found.lastgroup), found.group(0)), raw)

    def tree(self, thing: Any) -> Any:  # noqa: ANN401
        """JSON with every string, keys too, replaced; the value of a key that names a serial is one whatever its form."""
        if isinstance(thing, str):
            return self.text(thing)
        if isinstance(thing, dict):
            return {self.text(str(key)): self._member(str(key), value) for key, value in thing.items()}
        if isinstance(thing, list | tuple):
            return [self.tree(entry) for entry in thing]
        return thing

    def _member(self, key: str, value: Any) -> Any:  # noqa: ANN401
        if "serial" in key.lower():
            if isinstance(value, str) and value:
                return self._stand_in("serial", value)
            if isinstance(value, dict) and isinstance(value.get("v"), str):
                return {**value, "v": self._stand_in("serial", value["v"])}
        if key.lower() == "hostname" and isinstance(value, str):
            return self.host(value)
        return self.tree(value)

    def host(self, name: str) -> str:
        """Stand-in of a text that is a host name as a whole."""
        return self._stand_in("host", name) if name and name.lower() not in _COMMON else name

    def _replace(self, kind: str, found: str) -> str:
        digits = re.sub(r"[^0-9a-fA-F]", "", found)
        if not digits.strip("0") or not digits.strip("fF"):
            return found
        return _REPLACERS[kind](self, found)

    def _number(self, kind: str, key: str) -> int:
        """1, 2, 3 … in the order of first appearance."""
        made = self._made.setdefault(kind, {})
        return made.setdefault(key, len(made) + 1)

    def _stand_in(self, kind: str, key: str) -> str:
        return f"{kind}-{self._number(kind, key)}" if kind != "serial" else f"SN{self._number(kind, key):08d}"

    def ipv4(self, found: str) -> str:
        parts = found.split(".")
        if any(int(part) > 255 for part in parts) or parts[0] in ("0", "127", "255") or found.startswith("169.254."):
            return found
        net = self._number("net", ".".join(parts[:3]))
        host = 0 if parts[3] == "0" else 255 if parts[3] == "255" else self._number(f"host of {net}", parts[3])
        return f"10.{100 + net // 256 % 100}.{net % 256}.{host % 255 if host != 255 else 255}"

    def guid(self, found: str) -> str:
        if ":" not in found and found.startswith("0000"):
            return found  # a memory address or mask: no vendor's GUIDs begin so
        number = self._number("guid", re.sub(r"[^0-9a-f]", "", found.lower()))
        digits = f"{number:016x}"
        return ":".join(digits[i : i + 4] for i in range(0, 16, 4)) if ":" in found else digits

    def gid(self, found: str) -> str:
        groups = found.lower().split(":")
        if groups[:6] == ["0000"] * 5 + ["ffff"]:
            mapped = self.ipv4(".".join(str(int(groups[i][k : k + 2], 16)) for i in (6, 7) for k in (0, 2)))
            values = [int(part) for part in mapped.split(".")]
            return ":".join((*groups[:6], f"{values[0]:02x}{values[1]:02x}", f"{values[2]:02x}{values[3]:02x}"))
        prefix = (
            groups[:4]
            if groups[0].startswith("fe8")
            else ["2001", "0db8", "0000", f"{self._number('prefix', ':'.join(groups[:4])):04x}"]
        )
        return ":".join((*prefix, self.guid(":".join(groups[4:]))))

    def ipv6(self, found: str) -> str:
        low = found.lower()
        if "::" not in low and low.count(":") != 7:
            return found
        if low in ("::1", "::") or low.startswith("ff"):
            return found
        number = self._number("guid", low)
        return f"fe80::{number:x}" if low.startswith("fe8") else f"2001:db8::{number:x}"

    def mac(self, found: str) -> str:
        number = self._number("mac", found.lower())
        size = found.count(":") + 1
        digits = f"{number:0{2 * size - 2}x}"
        return "02:" + ":".join(digits[i : i + 2] for i in range(0, len(digits), 2))

    def uuid(self, found: str) -> str:
        return f"00000000-0000-4000-8000-{self._number('uuid', re.sub('-', '', found.lower())):012x}"

    def hex32(self, found: str) -> str:
        return f"{self._number('uuid', found.lower()):032x}"


_REPLACERS: dict[str, Callable[[Redactor, str], str]] = {
    "uuid": Redactor.uuid,
    "long_mac": Redactor.mac,
    "mac": Redactor.mac,
    "gid": Redactor.gid,
    "guid": Redactor.guid,
    "ipv6": Redactor.ipv6,
    "ipv6_short": Redactor.ipv6,
    "hex32": Redactor.hex32,
    "hex16": Redactor.guid,
    "ipv4": Redactor.ipv4,
}
