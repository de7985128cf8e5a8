"""Replaces what identifies a site in a recording: host and user names, addresses, GUIDs, serials, UUIDs.

The same value becomes the same stand-in everywhere, so that facts keep their relations (which port has which GID, which
interfaces share a subnet). Zero, loopback and link-local values keep their meaning. Stand-ins: host-1, user-1, 10.x.y.z,
2001:db8::…, 02:00:…, GUIDs and UUIDs that begin with zeros.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Container
from typing import Any

from epctl.core.address import groups
from epctl.probes.redact_forms import ANY, PUBLIC_DOMAINS, SERIAL, VERSION_BEFORE

HOME = re.compile(r"(/(?:home|Users)/)([A-Za-z0-9_@-](?:[A-Za-z0-9_.@-]{0,62}[A-Za-z0-9_@-])?)")
USER_SETTINGS = ("USER", "LOGNAME", "SLURM_JOB_USER", "SUDO_USER", "SLURM_JOB_ACCOUNT")
HOST_SETTINGS = (
    "HOSTNAME",
    "MASTER_ADDR",
    "SLURMD_NODENAME",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_SUBMIT_HOST",
    "SLURM_TOPOLOGY_ADDR",
    "SLURM_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_STEP_NODELIST",
)
MAX_DEPTH = 100
"""Levels of JSON below which nothing is kept; no collector nests a tenth of it."""
_WITHHELD = "(withheld)"
_COMMON = frozenset(
    ("localhost", "root", "ubuntu", "nvidia", "none", "user", "node", "unknown", "home", "shared", "admin")
)
_RUN = re.compile(r"[^\W_]+(?:[._@-]+[^\W_]+)*")
_PART = re.compile(r"[^\W_]+")
_DOMAIN = re.compile(r"(?:\.[A-Za-z][A-Za-z0-9-]*)*")
_SYSTEM = re.compile(r"/(?:sys|proc|dev(?!/shm/)|usr|lib|lib64|bin|sbin)(?:/|$)")


def is_address(text: str) -> bool:
    """`text` is an IP address and no name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_system_path(path: str) -> bool:
    """Names in such paths are the kernel's or the distribution's."""
    return _SYSTEM.match(path) is not None


class Redactor:
    """One consistent replacement for one recording. `words`: what readers, paths and keys need; a name that is such a word
    (a user `dev`, a host `gpu`) is replaced where it can only be a name: below /home and as a whole value."""

    def __init__(self, hosts: tuple[str, ...] = (), users: tuple[str, ...] = (), words: Container[str] = ()) -> None:
        self._made: dict[str, dict[str, int]] = {}
        self._names: dict[str, str] = {}
        self._longest = 0
        for kind, names in (("host", hosts), ("user", users)):
            for name in sorted(set(names), key=lambda entry: (-len(entry), entry)):
                self._learn(kind, name.lower(), words)

    def _learn(self, kind: str, name: str, words: Container[str]) -> None:
        if len(name) < 3 or name in _COMMON or name in words or is_address(name) or not re.search(r"[^\W\d_]", name):
            return
        parts = list(_PART.finditer(name))
        self._names.setdefault(name[parts[0].start() : parts[-1].end()], kind)
        self._longest = max(self._longest, len(parts))

    def text(self, raw: str) -> str:
        """`raw` with every identifier replaced."""
        raw = HOME.sub(lambda found: found[1] + self.user(found[2]), raw)
        if self._names:
            raw = self._without_names(raw)
        return self.forms(raw)

    def path(self, raw: str) -> str:
        """A path; what stands in a path of the system is no name of a user or host."""
        return self.forms(raw) if is_system_path(raw) else self.text(raw)

    def entry(self, folder: str, name: str) -> str:
        """A name in `folder`; below /home it is a user's."""
        if folder.rstrip("/") in ("/home", "/Users"):
            return self.user(name)
        return self.forms(name) if is_system_path(folder) else self.text(name)

    def forms(self, raw: str) -> str:
        """`raw` with everything replaced that its form gives away."""
        raw = SERIAL.sub(lambda found: found.group(1) + self._stand_in("serial", found.group(2)), raw)
        # One pass over all forms: a stand-in must not be taken for an identifier of the next form.
        return ANY.sub(self._replace, raw)

    def _without_names(self, raw: str) -> str:
        """`raw` with the learned names replaced; the cost does not depend on how many there are."""
        pieces: list[str] = []
        done = 0
        for run in _RUN.finditer(raw):
            parts = [(run.start() + part.start(), run.start() + part.end()) for part in _PART.finditer(run[0])]
            first = 0
            while first < len(parts):
                begin = parts[first][0]
                last = self._last_part(raw, parts, first)
                if last < first:
                    first += 1
                    continue
                end = parts[last][1]
                name = raw[begin:end].lower()
                pieces += [raw[done:begin], self._name(name)]
                domain = _DOMAIN.match(raw, end) if self._names[name] == "host" else None
                done = domain.end() if domain else end
                first = last + 1
                while first < len(parts) and parts[first][0] < done:
                    first += 1
        return "".join((*pieces, raw[done:]))

    def _last_part(self, raw: str, parts: list[tuple[int, int]], first: int) -> int:
        """Index of the last part of the longest name that begins at part `first`; -1: none begins there."""
        for last in range(min(len(parts), first + self._longest) - 1, first - 1, -1):
            if raw[parts[first][0] : parts[last][1]].lower() in self._names:
                return last
        return -1

    def _name(self, name: str) -> str:
        return self.host(name) if self._names[name] == "host" else self.user(name)

    def tree(self, thing: Any, depth: int = 0) -> Any:  # noqa: ANN401
        """JSON with every string replaced; the value of a key that names a serial is one whatever its form. Keys are words of
        the collectors, of which only paths and addresses can say something of the site."""
        if depth > MAX_DEPTH:
            return _WITHHELD
        if isinstance(thing, str):
            return self.path(thing)
        if isinstance(thing, dict):
            return {self._key(str(key)): self._member(str(key), value, depth + 1) for key, value in thing.items()}
        if isinstance(thing, list | tuple):
            return [self.tree(entry, depth + 1) for entry in thing]
        return thing

    def _key(self, key: str) -> str:
        return self.path(key) if key.startswith("/") else self.forms(key)

    def _member(self, key: str, value: Any, depth: int) -> Any:  # noqa: ANN401
        whole = self._whole(key)
        if whole is not None:
            if isinstance(value, str) and value:
                return whole(value)
            if isinstance(value, dict) and isinstance(value.get("v"), str):
                return {**value, "v": whole(value["v"])}
        return self.tree(value, depth)

    def _whole(self, key: str) -> Callable[[str], str] | None:
        """What replaces the value of such a key as a whole."""
        if "serial" in key.lower():
            return lambda value: self._stand_in("serial", value)
        if key.lower() == "hostname" or key in HOST_SETTINGS:
            return lambda value: self.text(value) if is_address(value) else self.host(value)
        if key in USER_SETTINGS:
            return self.user
        if key.lower() == "version":
            return lambda value: value if re.fullmatch(r"[\d.]+", value) else self.text(value)
        return None

    def host(self, name: str) -> str:
        """Stand-in of a text that is a host name as a whole; with and without its domain it is the same host."""
        short = name.lower().split(".")[0]
        return self._stand_in("host", short) if short and short not in _COMMON else name

    def user(self, name: str) -> str:
        """Stand-in of a text that is a user name as a whole."""
        return self._stand_in("user", name.lower()) if name and name.lower() not in _COMMON else name

    def _replace(self, match: re.Match[str]) -> str:
        kind, found = str(match.lastgroup), match[0]
        digits = re.sub(r"[^0-9a-fA-F]", "", found)
        if kind in _HEXADECIMAL and (not digits.strip("0") or not digits.strip("fF")):
            return found
        if kind == "ipv4" and VERSION_BEFORE.search(match.string, max(0, match.start() - 60), match.start()):
            return found
        return _REPLACERS[kind](self, found)

    def _number(self, kind: str, key: str) -> int:
        """1, 2, 3 … in the order of first appearance."""
        made = self._made.setdefault(kind, {})
        return made.setdefault(key, len(made) + 1)

    def _stand_in(self, kind: str, key: str) -> str:
        return f"{kind}-{self._number(kind, key)}" if kind != "serial" else f"SN{self._number(kind, key):08d}"

    def ipv4(self, found: str) -> str:
        parts = [str(int(part)) for part in found.split(".")]
        if any(int(part) > 255 for part in parts) or parts[0] in ("0", "127", "255") or parts[:2] == ["169", "254"]:
            return found
        net = self._number("net", ".".join(parts[:3]))
        host = 0 if parts[3] == "0" else 255 if parts[3] == "255" else self._number(f"host of {net}", parts[3])
        high, low = divmod(100 * 256 + net, 65536)
        return f"{10 + high}.{low // 256}.{low % 256}.{host}"

    def guid(self, found: str) -> str:
        if ":" not in found and found.startswith("0000"):
            return found  # a memory address or mask: no vendor's GUIDs begin so
        digits = f"{self._number('guid', re.sub(r'[^0-9a-f]', '', found.lower())):016x}"
        return ":".join(digits[i : i + 4] for i in range(0, 16, 4)) if ":" in found else digits

    def gid(self, found: str) -> str:
        return groups(self._address6(ipaddress.IPv6Address(found)))

    def ipv6(self, found: str) -> str:
        try:
            address = ipaddress.IPv6Address(found)
        except ValueError:
            return found
        made = self._address6(address)
        return found if made == address else made.compressed

    def _address6(self, address: ipaddress.IPv6Address) -> ipaddress.IPv6Address:
        if address.is_loopback or address.is_unspecified or address.is_multicast:
            return address
        if address.ipv4_mapped is not None:
            mapped = ipaddress.IPv4Address(self.ipv4(str(address.ipv4_mapped)))
            return ipaddress.IPv6Address(0xFFFF << 32 | int(mapped))
        net, low = divmod(int(address), 1 << 64)
        made = net if address.is_link_local else 0x20010DB8 << 32 | self._number("prefix", f"{net:016x}")
        return ipaddress.IPv6Address(made << 64 | (self._number("guid", f"{low:016x}") if low else 0))

    def mac(self, found: str) -> str:
        digits = re.sub(r"[^0-9a-f]", "", found.lower())
        made = f"02{self._number('mac', digits):0{len(digits) - 2}x}"
        return found[2].join(made[i : i + 2] for i in range(0, len(made), 2))

    def uuid(self, found: str) -> str:
        return f"00000000-0000-4000-8000-{self._number('uuid', re.sub('-', '', found.lower())):012x}"

    def hex32(self, found: str) -> str:
        return f"{self._number('uuid', found.lower()):032x}"

    def cloud(self, found: str) -> str:
        return f"{found.partition('-')[0]}-{self._number('cloud', found):017x}"

    def mail(self, found: str) -> str:
        return f"{self._stand_in('user', found.lower())}@example.com"

    def authority(self, found: str) -> str:
        """Of a URL: who logs in goes, the port stays, a vendor's public server stays."""
        place = found.rpartition("@")[2]
        host, colon, port = place.rpartition(":") if re.search(r":\d+$", place) else (place, "", "")
        if host.lower().endswith(PUBLIC_DOMAINS):
            return place
        bare = host.strip("[]")
        if is_address(bare):
            return host.replace(bare, self.ipv6(bare) if ":" in bare else self.ipv4(bare)) + colon + port
        return self.host(host) + colon + port

    def secret(self, found: str) -> str:  # noqa: ARG002 - one of many kinds
        return _WITHHELD


_HEXADECIMAL = frozenset(("uuid", "long_mac", "mac", "dashed", "gid", "guid", "ipv6", "hex32", "hex16", "ipv4"))
_REPLACERS: dict[str, Callable[[Redactor, str], str]] = {
    "secret": Redactor.secret,
    "authority": Redactor.authority,
    "mail": Redactor.mail,
    "host": Redactor.host,
    "cloud": Redactor.cloud,
    "uuid": Redactor.uuid,
    "long_mac": Redactor.mac,
    "mac": Redactor.mac,
    "dashed": Redactor.mac,
    "gid": Redactor.gid,
    "guid": Redactor.guid,
    "ipv6": Redactor.ipv6,
    "hex32": Redactor.hex32,
    "hex16": Redactor.guid,
    "ipv4": Redactor.ipv4,
}
