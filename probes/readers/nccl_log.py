"""What a program prints with NCCL_DEBUG=INFO (or WARN): records of NCCL among the program's own lines, several ranks and
hosts mixed.

Everything is kept once: of ranks those of the largest communicator, of devices those of the first process.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field

from epctl.probes.readers._nccl_log_comms import CommReader, Rank, looks_cut
from epctl.probes.readers._nccl_log_kinds import detail_of, kind_of
from epctl.probes.readers._nccl_log_lines import MAX_TEXT, Record, records
from epctl.probes.readers._nccl_log_net import Channels, Fabric, NetDevice, NetReader, Path, Provider, VirtualDevice
from epctl.probes.readers._nccl_log_topology import Topology, TopologyReader
from epctl.probes.reading import Problem, Reading, clean, error_of, first_line, was_cut

MAX_WARNINGS = 2000
"""More are counted among the errors, not listed."""
MAX_HOSTS = 64
"""Hosts that a count names."""
_VERSION = re.compile(r"[NR]CCL version ?:? ?(\d{1,3}\.\d{1,4}[\w.+\-]{0,40})", re.ASCII)
_DRIVER = re.compile(r"cudaDriverVersion (\d{1,7})$", re.ASCII)
_RESULT = re.compile(r"\S{1,120}:\d{1,7} -> (\d{1,2})(?: |$)", re.ASCII)
_RESULTS = (
    "ncclSuccess", "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError", "ncclInvalidArgument", "ncclInvalidUsage",
    "ncclRemoteError", "ncclInProgress",
)  # fmt: skip
_OTHERS_SPEAK_OF_IT = ("nccl", "watchdog", "processgroup")


class LogWarning(Struct, frozen=True, omit_defaults=True):
    """A record of level WARN; the fields from `peer` on are there where the text has them."""

    host: str
    pid: int
    dev: int
    where: str
    text: str
    kind: str
    """Stable word for the kind of trouble, `other` for unknown ones."""
    peer: str | None = None
    peer_port: int | None = None
    status: int | None = None
    status_name: str | None = None
    opcode: int | None = None
    length: int | None = None
    vendor_err: int | None = None
    request: str | None = None
    hca: str | None = None
    local_gid: str | None = None
    remote_gid: str | None = None
    call: str | None = None
    errno: int | None = None
    errno_name: str | None = None
    cuda_error: int | None = None
    cuda_error_name: str | None = None
    size: int | None = None
    """Bytes."""
    ranks: list[int] | None = None
    versions: list[int] | None = None
    bus_id: str | None = None
    line: int = 0
    """Number of the line in the log, from 1."""


class Count(Struct):
    """Lines of one kind; `text` is the first of them."""

    kind: str
    count: int
    text: str
    line: int = 0
    """Number of the first line in the log, from 1."""
    hosts: list[str] = field(default_factory=list)
    """Hosts of the records; none for lines of the program."""


class Facts(Struct, frozen=True):
    nccl_version: str | None = None
    nccl_versions: list[str] = field(default_factory=list)
    cuda_driver_version: int | None = None
    nranks: int | None = None
    n_nodes: int | None = None
    local_ranks: int | None = None
    n_communicators: int = 0
    hosts: list[str] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)
    ranks_unfinished: list[int] = field(default_factory=list)
    """Ranks that started and did not complete: they hang, or the log ends before."""
    network: str | None = None
    networks: list[str] = field(default_factory=list)
    net_plugin: str | None = None
    gin_plugin: str | None = None
    gin_type: int | None = None
    net_devices: list[NetDevice] = field(default_factory=list)
    virtual_devices: list[VirtualDevice] = field(default_factory=list)
    relaxed_ordering: bool | None = None
    oob: dict[str, str] = field(default_factory=dict)
    """Host → interface:address."""
    bootstrap: dict[str, str] = field(default_factory=dict)
    gdr: bool | None = None
    mnnvl: bool | None = None
    fabric: list[Fabric] = field(default_factory=list)
    nvls: bool | None = None
    channels: Channels | None = None
    env: dict[str, str] = field(default_factory=dict)
    env_conflicts: dict[str, list[str]] = field(default_factory=dict)
    """Variables that processes report with different values."""
    paths: list[Path] = field(default_factory=list)
    libfabric_provider: Provider | None = None
    nic_groups: list[list[str]] = field(default_factory=list)
    topology: Topology | None = None
    warnings: list[LogWarning] = field(default_factory=list)
    n_warnings: int = 0
    errors: list[Count] = field(default_factory=list)
    """Kinds of trouble, over warnings, other records and the program's own lines about NCCL."""
    notes: list[Count] = field(default_factory=list)
    """Kinds of remarks that explain a slow job and do no harm by themselves."""
    results: dict[str, int] = field(default_factory=dict)
    """Result that calls handed up the stack → how often."""


class _Log:
    def __init__(self) -> None:
        self.versions: dict[str, None] = {}
        self.driver: int | None = None
        self.hosts: dict[str, None] = {}
        self.comms, self.net, self.topology = CommReader(), NetReader(), TopologyReader()
        self.warnings: list[LogWarning] = []
        self.n_warnings = 0
        self.errors: dict[str, Count] = {}
        self.notes: dict[str, Count] = {}
        self.results: dict[str, int] = {}
        self.line = 0

    @property
    def is_one(self) -> bool:
        return bool(self.hosts or self.versions)

    def take_other(self, line: str) -> None:
        """A line that is no record of NCCL."""
        if found := _VERSION.match(line):
            self.versions.setdefault(found.group(1))
            return
        low = line[:2000].lower()
        if any(word in low for word in _OTHERS_SPEAK_OF_IT) and (kind := kind_of(low)) and kind.weight == "error":
            self._add(self.errors, kind.kind, line)

    def take(self, record: Record) -> None:
        self.hosts.setdefault(record.host)
        if record.level == "WARN":
            self._take_warning(record)
            return
        text = record.text
        self.topology.take(record)
        if text.startswith(("Channel ", "Trees ", "Ring ", "+", " ", "GPU/", "NCCL_")):
            self.net.take(record)
        elif found := _VERSION.match(text):
            self.versions.setdefault(found.group(1))
        elif found := _DRIVER.match(text):
            self.driver = self.driver or int(found.group(1))
        elif found := _RESULT.match(text):
            code = int(found.group(1))
            name = _RESULTS[code] if code < len(_RESULTS) else str(code)
            self.results[name] = self.results.get(name, 0) + 1
        elif not self.comms.take(record):
            self.net.take(record)
            self._count(record)

    def _count(self, record: Record) -> None:
        if kind := kind_of(record.text):
            self._add(self.errors if kind.weight == "error" else self.notes, kind.kind, record.text, record.host)

    def _add(self, counts: dict[str, Count], kind: str, text: str, host: str = "") -> None:
        known = counts.get(kind)
        if known is None:
            known = counts[kind] = Count(kind, 0, text.strip()[:300], self.line)
        known.count += 1
        if host and host not in known.hosts and len(known.hosts) < MAX_HOSTS:
            known.hosts.append(host)

    def _take_warning(self, record: Record) -> None:
        self.n_warnings += 1
        found = kind_of(record.text, record.where)
        kind = found.kind if found else "other"
        if found is None or found.weight == "error":
            self._add(self.errors, kind, record.text, record.host)
        else:
            self._add(self.notes, kind, record.text, record.host)
        if len(self.warnings) < MAX_WARNINGS:
            detail: dict[str, Any] = detail_of(kind, record.text)
            text = record.text[:2000]
            place = {"line": self.line} | detail
            self.warnings.append(LogWarning(record.host, record.pid, record.dev, record.where, text, kind, **place))

    def facts(self) -> Facts:
        net, ranks = self.net, self.comms.ranks()
        layout = self.comms.layout(ranks)
        if self.comms.aborted:
            self.errors["aborted"] = Count("aborted", self.comms.aborted, "Abort COMPLETE")
        return Facts(
            nccl_version=next(iter(self.versions), None),
            nccl_versions=list(self.versions),
            cuda_driver_version=self.driver,
            nranks=self.comms.n_ranks(),
            n_nodes=layout.n_nodes,
            local_ranks=layout.local_ranks,
            n_communicators=self.comms.n_communicators,
            hosts=list(self.hosts),
            ranks=ranks,
            ranks_unfinished=[rank.rank for rank in ranks if not rank.init_complete],
            network=next(iter(net.networks), None),
            networks=list(net.networks),
            net_plugin=net.net_plugin,
            gin_plugin=net.gin_plugin,
            gin_type=net.gin_type,
            net_devices=net.net_devices(),
            virtual_devices=list(net.virtual_devices.values()),
            relaxed_ordering=net.relaxed_ordering,
            oob=net.oob,
            bootstrap=net.bootstrap,
            gdr=net.gdr if net.gdr is not None else net.gdr_adapters,
            mnnvl=layout.mnnvl,
            fabric=list(net.fabric.values()),
            nvls=net.nvls,
            channels=net.channels,
            env=net.env,
            env_conflicts={name: sorted(values) for name, values in net.env_values.items() if len(values) > 1},
            paths=net.paths,
            libfabric_provider=net.provider,
            nic_groups=[group for _, group in sorted(net.nic_groups.items())],
            topology=self.topology.facts(),
            warnings=self.warnings,
            n_warnings=self.n_warnings,
            errors=list(self.errors.values()),
            notes=list(self.notes.values()),
            results=self.results,
        )


def _cut_line(text: str, hosts: dict[str, None]) -> str:
    """The last line, where it has no line end and breaks off within a record."""
    line = text[text.rfind("\n") + 1 :][:MAX_TEXT]
    found = records(line)
    if found:
        return line if not found[-1].text or looks_cut(found[-1].text) else ""
    host = line.split(":", 1)[0]
    return line if line and ":" in line and host in hosts else ""


def read(raw: bytes) -> Reading[Facts]:
    """A log of any program is whole unless it breaks off within a record; whether the job failed is in the facts."""
    text = clean(raw)
    if not text.strip():
        return Reading("empty", Facts())
    log = _Log()
    for line in text.split("\n"):
        log.line += 1
        found = records(line, log.hosts)
        for record in found:
            log.take(record)
        if line and not found:
            log.take_other(line)
    if not log.is_one:
        return Reading("error", Facts(), error=error_of(text) or {"kind": "unparsable", "message": first_line(text)})
    problems: list[Problem] = []
    cut = _cut_line(text, log.hosts)
    if cut or was_cut(raw):
        problems.append(Problem("truncated", "last record" if cut else "past the limit", cut[:200]))
    if log.net.network_left_out:
        problems.append(Problem("too_many", "networks", log.net.network_left_out))
    return Reading("partial" if problems else "ok", log.facts(), problems=tuple(problems))
