"""`lspci -vv`: one paragraph per PCI function, its first line at the margin (`BDF class: name`), the rest indented.

Without root the capabilities are `<access denied>`; `-v` prints the NUMA node among the flags.
"""

from __future__ import annotations

import re

from msgspec import Struct, field

from epctl.probes.reading import Problem, Reading, clean, error_of, first_line, was_cut


class Link(Struct, frozen=True):
    """PCIe link: what the function can do (`cap`) and what was negotiated (`sta`). Speeds in GT/s, widths in lanes.
    A GPU that idles may show a lower speed: downgraded now, which is no fault by itself."""

    cap_gt_s: float | None
    cap_width: int | None
    sta_gt_s: float | None
    sta_width: int | None
    speed_downgraded: bool | None
    width_downgraded: bool | None


class Device(Struct, frozen=True, rename={"class_": "class"}):
    bdf: str
    """As printed, with the domain where the text has one."""
    class_: str
    name: str
    numa_node: int | None
    iommu_group: int | None
    driver: str | None
    link: Link | None
    acs_ctl: dict[str, bool] | None
    acs_redirects_p2p: bool | None
    access_denied: bool
    max_payload: int | None
    """Bytes, as set."""
    max_read_request: int | None
    """Bytes, as set."""
    fell_off_bus: bool
    """Configuration space reads as all ones."""


class Facts(Struct, frozen=True):
    devices: list[Device] = field(default_factory=list)


_HEADER = re.compile(r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) +(\S.*)", re.ASCII | re.I)
_TAIL = re.compile(r" \((?:rev [0-9a-f]{2}\)|prog-if )", re.ASCII)
_CODE = re.compile(r" \[[0-9a-f]{4}\]$", re.ASCII)
_IDS = re.compile(r" \[[0-9a-f]{4}:[0-9a-f]{4}\]$", re.ASCII)
_NUMA = re.compile(r"\bNUMA node:? (-?\d{1,5})\b", re.ASCII)
_IOMMU = re.compile(r"\bIOMMU group:? (\d{1,6})\b", re.ASCII)
_SPEED = re.compile(r"\bSpeed (\d{1,4}(?:\.\d{1,3})?)GT/s( \(downgraded\))?", re.ASCII)
_WIDTH = re.compile(r"\bWidth x(\d{1,3})( \(downgraded\))?", re.ASCII)
_ACS_FLAG = re.compile(r"([A-Za-z]\w*)([+-])(?=\s|$)", re.ASCII)
_PAYLOAD = re.compile(r"\bMaxPayload (\d{1,6}) bytes, MaxReadReq (\d{1,6}) bytes", re.ASCII)
_CHATTER = re.compile(r"(?:pcilib|lspci): |[\w@.:~/\-\[\] ]{0,80}[$#] ", re.ASCII)
_ACS_WORDS = 7
_MAX_LINE = 4096
"""Longer lines do not come from lspci."""


class _Builder:
    """One function while its paragraph is read; a second listing of the function goes over the first."""

    def __init__(self, bdf: str, class_: str, name: str) -> None:
        self.bdf, self.class_, self.name = bdf, class_, name
        self.numa_node: int | None = None
        self.iommu_group: int | None = None
        self.driver: str | None = None
        self.cap: tuple[float | None, int | None] | None = None
        self.sta: tuple[float | None, int | None] | None = None
        self.marked = (False, False)
        self.acs_ctl: dict[str, bool] | None = None
        self.access_denied = False
        self.payload: tuple[int, int] | None = None
        self.fell_off_bus = False

    def take(self, line: str) -> None:
        if line.startswith("Kernel driver in use:"):
            self.driver = line.partition(":")[2].strip() or None
        elif line.startswith("LnkCap:"):
            self.cap = _speed_and_width(line)[0]
        elif line.startswith("LnkSta:"):
            self.sta, self.marked = _speed_and_width(line)
        elif line.startswith("ACSCtl:"):
            self.acs_ctl = {flag: sign == "+" for flag, sign in _ACS_FLAG.findall(line)}
        elif line.startswith("Capabilities: <access denied>"):
            self.access_denied = True
        elif line.startswith("MaxPayload") and (found := _PAYLOAD.match(line)):
            self.payload = int(found.group(1)), int(found.group(2))
        elif line.startswith("!!! Unknown header type 7f"):
            self.fell_off_bus = True
        elif line.startswith(("NUMA node", "IOMMU group", "Flags:")):
            self._take_place(line)

    def _take_place(self, line: str) -> None:
        if found := _NUMA.search(line):
            node = int(found.group(1))
            self.numa_node = node if node >= 0 else None
        if found := _IOMMU.search(line):
            self.iommu_group = int(found.group(1))

    def _link(self) -> Link | None:
        if self.cap is None and self.sta is None:
            return None
        (cap_speed, cap_width), (sta_speed, sta_width) = self.cap or (None, None), self.sta or (None, None)
        return Link(
            cap_gt_s=cap_speed,
            cap_width=cap_width,
            sta_gt_s=sta_speed,
            sta_width=sta_width,
            speed_downgraded=_less(sta_speed, cap_speed, self.marked[0]),
            width_downgraded=_less(sta_width, cap_width, self.marked[1]),
        )

    def device(self) -> Device:
        return Device(
            bdf=self.bdf,
            class_=self.class_,
            name=self.name,
            numa_node=self.numa_node,
            iommu_group=self.iommu_group,
            driver=self.driver,
            link=self._link(),
            acs_ctl=self.acs_ctl,
            acs_redirects_p2p=_redirects(self.acs_ctl),
            access_denied=self.access_denied,
            max_payload=self.payload[0] if self.payload else None,
            max_read_request=self.payload[1] if self.payload else None,
            fell_off_bus=self.fell_off_bus,
        )


def _less(now: float | None, best: float | None, marked: bool) -> bool | None:
    if now is None:
        return None
    return marked or (best is not None and now < best)


def _redirects(acs_ctl: dict[str, bool] | None) -> bool | None:
    """Whether requests between two functions under one switch take the way over the root complex."""
    if acs_ctl is None:
        return None
    states = [acs_ctl.get("ReqRedir"), acs_ctl.get("CmpltRedir")]
    if True in states:
        return True
    return None if None in states else False


def _speed_and_width(line: str) -> tuple[tuple[float | None, int | None], tuple[bool, bool]]:
    speed, width = _SPEED.search(line), _WIDTH.search(line)
    values = float(speed.group(1)) if speed else None, int(width.group(1)) if width else None
    return values, (bool(speed and speed.group(2)), bool(width and width.group(2)))


def _header(line: str) -> _Builder | None:
    """The function that a line at the margin opens."""
    found = _HEADER.fullmatch(line)
    class_, colon, name = found.group(2).partition(": ") if found else ("", "", "")
    if not found or not colon:
        return None
    tail = _TAIL.search(name)
    builder = _Builder(
        found.group(1).lower(), _CODE.sub("", class_), _IDS.sub("", name[: tail.start()] if tail else name)
    )
    builder.name = builder.name.strip()
    builder.fell_off_bus = " (rev ff)" in name
    return builder


def _cut_in(line: str) -> str | None:
    """The key of a last line without a line end that breaks off inside its value; "" for one inside a header."""
    stripped = line.strip()
    if line == line.lstrip() and stripped:
        return "" if _header(line) is None and not _CHATTER.match(line) else None
    key, colon, value = stripped.partition(":")
    if key in ("ACSCtl", "ACSCap"):
        return key if not colon or len(_ACS_FLAG.findall(value)) < _ACS_WORDS else None
    if key in ("LnkCap", "LnkSta"):
        return key if not _WIDTH.search(value) else None
    return key if (not colon and len(key) < 8) or (not value and colon) else None


class _Listing:
    def __init__(self) -> None:
        self.functions: dict[str, _Builder] = {}
        self.current: _Builder | None = None
        self.stray = ""
        """First line that belongs to no function."""

    def take(self, line: str) -> None:
        if line[:1] in (" ", "\t"):
            if self.current is not None:
                self.current.take(line.strip())
            return
        if opened := _header(line.rstrip()):
            known = self.functions.setdefault(opened.bdf, opened)
            known.fell_off_bus = opened.fell_off_bus
            self.current = known
        elif line.strip() and not _CHATTER.match(line):
            self.current = None
            self.stray = self.stray or line.strip()[:200]


def read(raw: bytes) -> Reading[Facts]:
    """Functions in the order of the text; `permission` is reported once for all functions."""
    text = clean(raw)
    if not text.strip():
        return Reading("empty", Facts())
    lines = [line[:_MAX_LINE] for line in text.split("\n")]
    listing = _Listing()
    cut = _cut_in(lines[-1]) if lines[-1].strip() else None
    for line in lines[:-1] if cut == "" else lines:
        listing.take(line)
    devices = [function.device() for function in listing.functions.values()]
    if not devices:
        return Reading("error", Facts(), error=error_of(text) or {"kind": "unparsable", "message": first_line(text)})
    problems = []
    if any(device.access_denied for device in devices):
        problems.append(Problem("permission", "capabilities", "Capabilities: <access denied>"))
    if listing.stray:
        problems.append(Problem("unparsable", "", listing.stray))
    if cut is not None or was_cut(raw):
        where = f"{listing.current.bdf} {cut or ''}".strip() if listing.current else ""
        problems.append(Problem("truncated", where, lines[-1].strip()[:200]))
    return Reading("partial" if problems else "ok", Facts(devices), problems=tuple(problems))
