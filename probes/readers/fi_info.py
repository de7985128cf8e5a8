"""Endpoints that libfabric offers, as `fi_info -p efa` lists them: one block per endpoint, several per NIC."""

from __future__ import annotations

import re

from msgspec import Struct, field

from epctl.probes.readers._listing import Damage, conclude, listing_text
from epctl.probes.reading import Problem, Reading, was_cut

_KEYS = ("provider", "fabric", "domain", "version", "type", "protocol")
_LINE = re.compile(r"\s{0,64}([A-Za-z_]{1,40}):(.*)", re.ASCII)
_RANK = re.compile(r"\s{0,64}\[\d{1,6}(?:,\d{1,6})?\](?:<std\w{3}>)?:?")
"""What a launcher puts in front of each line."""
_FAILED = re.compile(r"fi_getinfo:?\s{0,8}(-?\d{1,6})\b", re.ASCII)
_ENDPOINT = re.compile(r"-(?:rdm|dgrm|dgram|msg|xrc)\Z")
_VERBOSE = {
    ("fi_ep_attr", "type"): "type",
    ("fi_ep_attr", "protocol"): "protocol",
    ("fi_domain_attr", "name"): "domain",
    ("fi_fabric_attr", "name"): "fabric",
    ("fi_fabric_attr", "prov_name"): "provider",
    ("fi_fabric_attr", "prov_version"): "version",
}
"""Where the long form (`fi_info -v`) has the same six."""
_NO_NIC = frozenset({"shm", "sm2", "lnx", "lo"})
MAX_ENTRIES = 20_000
"""Entries that are kept. A node has at most some hundred: 32 NICs, a few kinds of endpoint, a few protocols."""
_NO_DATA = 61
_CODES = {_NO_DATA: "no_devices", 38: "unsupported", 13: "permission", 1: "permission", 19: "no_devices"}
"""Numbers of the system's errors, which the text next to them names in the user's language."""


class Entry(Struct, frozen=True):
    provider: str | None = None
    fabric: str | None = None
    domain: str | None = None
    version: str | None = None
    type: str | None = None
    protocol: str | None = None


class Facts(Struct, frozen=True):
    entries: list[Entry] = field(default_factory=list)
    n_entries: int = 0
    devices: list[str] = field(default_factory=list)
    """Different NICs in the order of the text: domains without the kind of endpoint at their end."""
    n_devices: int = 0
    n_rdm_efa: int = 0
    """Entries of provider `efa` with reliable datagrams (FI_EP_RDM)."""


def read(raw: bytes) -> Reading[Facts]:
    """What `fi_info -p efa` says."""
    text = listing_text(raw)
    damage, nothing = Damage(text), Facts()
    blocks, code = _blocks(text, damage)
    if not blocks and code is not None:
        kind = _CODES.get(abs(code[0]), "fi_getinfo_failed")
        cut = (Problem("truncated", "end of the input"),) if was_cut(raw) else ()
        return Reading("error", nothing, {"kind": kind, "code": code[0], "message": code[1]}, cut)
    if code is not None:
        damage.add(_CODES.get(abs(code[0]), "fi_getinfo_failed"), "", code[1])
    if blocks and not text.endswith("\n"):
        _drop_cut_value(blocks)
    _check(blocks, damage)
    if len(blocks) > MAX_ENTRIES:
        damage.add("too_many", f"entries past the first {MAX_ENTRIES}")
        del blocks[MAX_ENTRIES:]
    entries = [Entry(**block) for block in blocks]
    devices = list(dict.fromkeys(device for entry in entries if (device := _device(entry))))
    n_rdm = sum(entry.provider == "efa" and entry.type == "FI_EP_RDM" for entry in entries)
    facts = Facts(entries, len(entries), devices, len(devices), n_rdm) if entries else nothing
    return conclude(raw, text, facts, nothing, damage)


def _blocks(text: str, damage: Damage) -> tuple[list[dict[str, str]], tuple[int, str] | None]:
    """Keys of each entry, and the code of the error where there is one."""
    blocks: list[dict[str, str]] = []
    code: tuple[int, str] | None = None
    verbose, section, fresh = False, "", True
    for whole in text.split("\n"):
        line = _RANK.sub("", whole, count=1) if whole[:64].lstrip().startswith("[") else whole
        found = _LINE.match(line)
        if (failed := _FAILED.search(line[:400])) is not None:
            code = code or (int(failed[1]), line.strip()[:200])
        elif line.strip() in {"---", "fi_info:"}:
            verbose, section, fresh = True, "", True
        elif found is None:
            if line.strip() and not verbose:
                damage.foreign(line)
        elif verbose:
            section = found[1] if not found[2].strip() else section
            key = _VERBOSE.get((section, found[1]))
            if key is not None:
                fresh = _put(blocks, key, found[2].strip(), fresh)
        elif found[1] in _KEYS:
            fresh = _put(blocks, found[1], found[2].strip(), fresh or found[1] == "provider")
        elif found[1] not in {"libfabric", "caps", "mode"}:
            damage.foreign(line)
    return blocks, code


def _put(blocks: list[dict[str, str]], key: str, value: str, fresh: bool) -> bool:
    """Adds a key to the last entry, or to a new one. Returns whether the next key starts a new one: it never does."""
    if fresh or not blocks or key in blocks[-1]:
        del blocks[MAX_ENTRIES:]  # the one past the limit stands for all that are left out
        blocks.append({})
    blocks[-1][key] = value
    return False


def _drop_cut_value(blocks: list[dict[str, str]]) -> None:
    """Without a line end, the last value of the text may lack its end: it does when others go on from there."""
    last = blocks[-1]
    key, value = next(reversed(last.items()))
    if any(other.get(key, "").startswith(value) and other[key] != value for other in blocks[:-1] if key in other):
        if not any(other.get(key) == value for other in blocks[:-1]):
            del last[key]
    elif key == "protocol" and not value.startswith("FI_PROTO_"):
        del last[key]


def _check(blocks: list[dict[str, str]], damage: Damage) -> None:
    for number, block in enumerate(blocks):
        missing = [key for key in _KEYS if not block.get(key)]
        if missing:
            kind = "truncated" if number == len(blocks) - 1 else "missing_lines"
            where = block.get("domain") or f"entry {number}"
            damage.add(kind, where, next((f"{key}: {value}" for key, value in reversed(block.items())), ""))


def _device(entry: Entry) -> str | None:
    provider = (entry.provider or "").partition(";")[0]
    if not entry.domain or provider in _NO_NIC or entry.domain in _NO_NIC:
        return None
    return _ENDPOINT.sub("", entry.domain)
