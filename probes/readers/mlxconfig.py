"""Firmware settings of NICs, as `mlxconfig -d DEVICE q` (or mstconfig) lists them; with `-e` also default and current
values beside those of the next boot."""

from __future__ import annotations

import re
from dataclasses import dataclass
from dataclasses import field as data_field

from msgspec import Struct, field

from epctl.probes.readers._listing import Damage, conclude, listing_text
from epctl.probes.reading import Reading

_DEVICE = re.compile(r"\s{0,32}Device #(\d{1,6}):\s{0,200}\Z", re.ASCII)
_FIELD = re.compile(r"\s{0,32}(Device type|Name|Description|Device)\s{0,8}:(.*)", re.ASCII)
_COLUMNS = re.compile(r"\s{0,32}Configurations:(.*)", re.ASCII)
_COLUMN = re.compile(r"Default|Current|Next\s{1,4}Boot|New\b", re.IGNORECASE)
_PARAM = re.compile(
    r"(\*?)\s{0,32}(RO\s{1,32})?([A-Z][A-Z0-9][A-Za-z0-9_]{0,120}(?:\[[\d.]{1,24}\])?)(?:\s+(.*))?\Z", re.ASCII
)
_LABELLED = re.compile(r"(.*)\((-?\d{1,20})\)\Z", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,20}\Z", re.ASCII)
_NOTES = ("the '*' shows", "the 'ro' shows", "-i-", "-w-", "apply new configuration", "applying", "---")
_KEYS = {"device type": "device_type", "name": "name", "description": "description", "device": "device"}


class Value(Struct, frozen=True):
    label: str | None
    value: int | None
    """The number in `LABEL(number)`, or a number that stands alone."""


class Param(Struct, frozen=True):
    default: Value | None = None
    """None (as `current` and `next_boot`): the listing has no such column, or prints N/A."""
    current: Value | None = None
    next_boot: Value | None = None
    new: Value | None = None
    """What a `set` is about to write."""
    marked: bool = False
    """A `*` stands in front: the next boot's value differs from the default or the current one."""
    read_only: bool = False


class Device(Struct, frozen=True):
    index: int | None
    device_type: str | None
    name: str | None
    description: str | None
    device: str | None
    columns: list[str] = field(default_factory=list)
    params: dict[str, Param] = field(default_factory=dict)
    pending: list[str] | None = None
    """Parameters whose value changes with the next boot; None when the text does not show current values."""


class Facts(Struct, frozen=True):
    columns: list[str] = field(default_factory=list)
    """Value columns of the first device, in the order of the text: `default`, `current`, `next_boot`."""
    devices: list[Device] = field(default_factory=list)


@dataclass
class _Text:
    index: int | None = None
    fields: dict[str, str] = data_field(default_factory=dict)
    columns: list[str] | None = None
    params: dict[str, Param] = data_field(default_factory=dict)

    @property
    def where(self) -> str:
        return "device without a number" if self.index is None else f"Device #{self.index}"


def read(raw: bytes) -> Reading[Facts]:
    """What `mlxconfig q` says."""
    text = listing_text(raw)
    damage, nothing = Damage(text), Facts()
    texts = _texts(text, damage)
    for block in texts:
        if not block.params and not damage.has(block.where):
            damage.add("truncated" if block is texts[-1] else "no_values", block.where)
    devices = [_device(block) for block in texts]
    columns = next((block.columns for block in texts if block.columns), None) or []
    return conclude(raw, text, Facts(columns, devices) if _holds(texts) else nothing, nothing, damage)


def _holds(texts: list[_Text]) -> bool:
    return any(block.params or block.fields or block.columns for block in texts)


def _texts(text: str, damage: Damage) -> list[_Text]:
    texts: list[_Text] = []
    lines = text.rstrip().split("\n")
    for position, line in enumerate(lines):
        stripped = line.strip()
        if not stripped or stripped.lower().startswith(_NOTES):
            continue
        if (started := _DEVICE.match(line)) is not None:
            texts.append(_Text(int(started[1])))
        elif (said := _FIELD.match(line)) is not None:
            _field(texts, _KEYS[said[1].lower()], said[2].strip())
        elif (header := _COLUMNS.match(line)) is not None:
            names = ["_".join(found.lower().split()) for found in _COLUMN.findall(header[1])]
            _last(texts).columns = names
        elif (param := _PARAM.match(stripped)) is None or not texts:
            damage.foreign(line, texts[-1].where if texts else "")
        else:
            is_last = position == len(lines) - 1
            open_end = is_last and text.endswith(line) and not line.endswith((" ", ")", "]"))
            _param(texts[-1], param, is_last, open_end, damage)
    return texts


def _last(texts: list[_Text]) -> _Text:
    if not texts:
        texts.append(_Text())
    return texts[-1]


def _field(texts: list[_Text], key: str, value: str) -> None:
    block = _last(texts)
    if key in block.fields:  # a listing whose first lines are missing
        texts.append(block := _Text())
    if value and value != "N/A":
        block.fields[key] = value


def _param(block: _Text, found: re.Match[str], is_last: bool, open_end: bool, damage: Damage) -> None:
    star, read_only, name, rest = found.groups()
    words = (rest or "").split()
    columns = block.columns if block.columns is not None else []
    if not columns or len(words) != len(columns):
        kind = "truncated" if is_last and len(words) < len(columns) else "unparsable"
        damage.add(kind, f"{block.where} {name}", found[0])
        return
    if open_end and not _NUMBER.match(words[-1]):  # a label that may lack its end
        damage.add("truncated", f"{block.where} {name}", found[0])
        return
    values = dict(zip(columns, (_value(word) for word in words), strict=True))
    param = Param(
        values.get("default"),
        values.get("current"),
        values.get("next_boot"),
        values.get("new"),
        bool(star),
        bool(read_only),
    )
    if block.params.setdefault(name, param) != param:
        damage.add("repeated_listing", f"{block.where} {name}", found[0])


def _value(word: str) -> Value | None:
    if word == "N/A":
        return None
    if _NUMBER.match(word):
        return Value(None, int(word))
    labelled = _LABELLED.match(word)
    return Value(labelled[1], int(labelled[2])) if labelled else Value(word, None)


def _device(block: _Text) -> Device:
    shows_current = {"current", "next_boot"} <= set(block.columns or ())
    pending = [
        name
        for name, param in block.params.items()
        if param.current is not None and param.next_boot is not None and param.current != param.next_boot
    ]
    get = block.fields.get
    return Device(
        block.index,
        get("device_type"),
        get("name"),
        get("description"),
        get("device"),
        block.columns or [],
        block.params,
        pending if shows_current else None,
    )
