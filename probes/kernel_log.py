"""Lines of this boot's kernel log that a check may want: Xids, and what the driver, RDMA cards and the memory killer said."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from epctl.core.fact import Absent, Fact
from epctl.core.snapshot.gpu import LogLine, Xid
from epctl.probes.reading import clean, first_line
from epctl.probes.source import Output, Source

JOURNAL = ("journalctl", "-k", "-b", "--no-pager", "-o", "cat")
TIMEOUT_S = 5.0
RING_START_S = 60.0
"""A ring buffer whose first line is later than this has lost the begin of the boot."""
MAX_PER_KIND = 100
"""Lines kept of one Xid of one GPU: a flood of a harmless one must not push out a fatal one."""
MAX_PER_TOPIC = 200
MAX_XIDS = 2000
MAX_LINE_CHARS = 400
NVLINK5_XIDS = range(144, 151)
RECOVERY_XID = 154
"""Tells the action that the driver recommends now."""

_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}(?::[0-9a-fA-F]{2}){2})(?:\.[0-7])?\b[^)]{0,80}\): (\d{1,5})\b"
)
_FATAL = re.compile(r"(?<![-\w])fatal\b", re.IGNORECASE)
"""Not the `fatal` of non-fatal; `Nonfatal` is one word."""
_STAMP = re.compile(r"\[\s{0,12}(\d{1,12})\.\d{1,9}\]")

_TOPICS: tuple[tuple[str, str, re.Pattern[str]], ...] = (
    (
        "nvlink_rxdet",
        "NVRM",
        re.compile(
            r"knvlink\w{0,40}PostRxDet\w{0,40}.{0,80}failed|failed to update Rx Detect Link mask", re.IGNORECASE
        ),
    ),
    (
        "peermem_symbol",
        "peer_memory_client",
        re.compile(r"unknown symbol|disagrees about version of symbol", re.IGNORECASE),
    ),
    ("peermem", "peer", re.compile(r"(?:nvidia[-_]peermem|nv_peer_mem)\b.{0,120}invalid context", re.IGNORECASE)),
    (
        "mlx5_module_hot",
        "odule event",
        re.compile(r"port module event\[error\].{0,80}high temp", re.IGNORECASE),
    ),
    (
        "mlx5_resource",
        "mlx5",
        # ACCESS_REG and query commands fail on healthy cards all the time, with other words.
        re.compile(
            r"status (?:no resources|limits exceeded)\b|(?:CREATE|ALLOC)_\w{1,30}\(0x\w{1,6}\).{0,80}err\(-12\)"
            r"|(?:failed|unable) to allocate (?:uar|bfreg)",
            re.IGNORECASE,
        ),
    ),
    ("oom", "emory", re.compile(r"out of memory: |oom-kill:|out of memory and no killable", re.IGNORECASE)),
    ("oom", "oom-kill:", re.compile(r"oom-kill:")),
    (
        "nvidia",
        "SXid",
        re.compile(r"nvidia-nvswitch\S{0,20}: SXid"),
    ),
    (
        "nvidia",
        "NVRM",
        re.compile(
            r"API mismatch|RmInitAdapter failed|fallen off the bus|GPU is lost|probe .{0,60}failed", re.IGNORECASE
        ),
    ),
    ("nvidia", "nvidia", re.compile(r"\bnvidia\b.{0,60}probe .{0,60}failed with error", re.IGNORECASE)),
)
"""(topic, a piece of every such line, pattern); the first that fits names the line."""


class KernelLog(NamedTuple):
    """Xids and lines, both absent for the same reason when the log could not be read."""

    xids: Fact[tuple[Xid, ...]]
    lines: Fact[tuple[LogLine, ...]]
    note: str = ""


def kernel_log(source: Source) -> KernelLog:
    """From `dmesg`, or the journal where plain users may not run that, or where the ring buffer has lost the begin."""
    ring = _text(source.run("dmesg", timeout_s=TIMEOUT_S), "dmesg")
    if not isinstance(ring, Absent) and not _lost_begin(ring):
        return read_log(ring)
    journal = _text(source.run(*JOURNAL, timeout_s=TIMEOUT_S), "journalctl -k")
    if not isinstance(journal, Absent):
        return read_log(journal)
    if isinstance(ring, Absent):
        # A container without dmesg says more by it than by the journal that it does not have either.
        return KernelLog(ring, ring)
    return read_log(ring)._replace(
        note="the kernel log has lost its oldest lines: what the driver said then is unknown"
    )


def _text(found: Output | Absent, tool: str) -> str | Absent:
    """The log, when it is one: both tools exit with an error or print a sentence when this user may not see it."""
    if isinstance(found, Absent):
        return found
    text = clean(found.stdout)
    if text.strip() and not re.match(r"\s*(?:-- No entries --|No journal files were)", text):
        return text
    message = first_line(clean(found.stderr[:4096])) or first_line(text[:4096])
    if re.search(
        r"not permitted|permission denied|not seeing messages|no journal files|No entries", message, re.IGNORECASE
    ):
        return Absent("permission", f"{tool}: this user may not read the kernel log", message)
    return Absent("failed", f"{tool} printed no kernel log", message)


def _lost_begin(text: str) -> bool:
    stamp = _STAMP.match(text.lstrip()[:80])
    return stamp is not None and float(stamp[1]) > RING_START_S


def read_log(text: str) -> KernelLog:
    """What stands in a kernel log, oldest first."""
    xids: list[Xid] = []
    lines: list[LogLine] = []
    seen: Counter[object] = Counter()
    for line in text.split("\n"):
        found = _XID.search(line[:1000]) if "Xid" in line else None
        if found is not None:
            pci, code = f"{_domain(found[1])}.0", int(found[2])
            fatal = code in NVLINK5_XIDS and _FATAL.search(line[:1000]) is not None
            seen[pci, code, fatal] += 1
            if seen[pci, code, fatal] <= MAX_PER_KIND and len(xids) < MAX_XIDS:
                xids.append(Xid(code, pci, _kept(line), fatal))
            elif code == RECOVERY_XID:
                _keep_last(xids, Xid(code, pci, _kept(line), fatal))
            continue
        topic = _topic(line)
        if topic:
            seen[topic] += 1
            if seen[topic] <= MAX_PER_TOPIC:
                lines.append(LogLine(topic, _kept(line)))
    return KernelLog(tuple(xids), tuple(lines))


def _keep_last(xids: list[Xid], latest: Xid) -> None:
    """Puts `latest` in the place of the last of its GPU: the recovery action that counts is the one told last."""
    older = next(
        (i for i in range(len(xids) - 1, -1, -1) if (xids[i].code, xids[i].pci) == (latest.code, latest.pci)), None
    )
    if older is not None:
        del xids[older]
        xids.append(latest)


def _domain(address: str) -> str:
    """Bus address without function in sysfs form."""
    domain, _, rest = address.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _kept(line: str) -> str:
    return line.strip()[:MAX_LINE_CHARS]


def _topic(line: str) -> str:
    for topic, piece, pattern in _TOPICS:
        if piece in line and pattern.search(line[:1000]):
            return topic
    return ""


def trimmed(text: str) -> str:
    """A kernel log reduced to what `read_log` looks at, with the time stamp of its first line: the rest says more of a site
    than a support case needs."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    stamp = _STAMP.match(first.lstrip()[:80])
    head = f"{stamp[0] if stamp else ''} (lines that epctl does not read were left out)".strip()
    kept = [line for line in text.split("\n") if _topic(line) or _XID.search(line[:1000])]
    return "\n".join([head, *kept]) + "\n"
