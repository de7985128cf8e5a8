"""A second opinion on RDMA rates: ib_write_bw of perftest between two ports of this node, where it is installed.

Options and output: github.com/linux-rdma/perftest (README, perftest_resources.c)."""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor

from epctl.core.context import Context
from epctl.core.fact import Absent, Unreadable, value_or
from epctl.core.op_extras import Opinion
from epctl.core.snapshot import Snapshot
from epctl.core.views import nics
from epctl.core.views.nics import Nic
from epctl.probes import child
from epctl.probes.child import Finished

TOOL = "ib_write_bw"
MESSAGE_BYTES = 1 << 20
NUM_ITERATIONS = 2000
"""2 GiB: 42 ms at 400 Gb/s."""
LIMIT_S = 20.0
BUDGET_S = 30.0
"""Of all pairs: with the last run's own limit, less than the minute that other ranks wait."""
SERVER_S = 0.5
"""The server listens after that."""
MTU_BYTES = 4096
ETHERNET_OVERHEAD = 82
"""Bytes beside the payload of a RoCE v2 packet: preamble and gap 20, Ethernet 18, IPv4 20, UDP 8, BTH 12, ICRC 4 (IEEE 802.3; InfiniBand
Architecture Specification, annex A17)."""
INFINIBAND_OVERHEAD = 26
"""LRH 8, BTH 12, ICRC 4, VCRC 2 (InfiniBand Architecture Specification, volume 1)."""
_HEADER = re.compile(r"#bytes\s+#iterations\s+BW peak\[(?P<unit>[^\]]+)\]\s+BW average\[")
_UNITS_GBPS = {"Gb/sec": 1.0, "MB/sec": 8 * 2**20 / 1e9, "MiB/sec": 8 * 2**20 / 1e9}
"""perftest counts 2^20 bytes as a MB, whatever it calls them."""


def second_opinions(node: Snapshot, budget_s: float = BUDGET_S) -> tuple[Opinion, ...]:
    """Each active port of the fabric to the next one; () where the tool or a second port is missing. No run is begun after `budget_s`,
    which is told."""
    tool = shutil.which(TOOL)
    try:
        found = [nic for nic in nics.fabric(Context(node)) if nic.active and not nic.is_efa]
    except Unreadable:
        return ()
    if tool is None or len(found) < 2:
        return ()
    pairs = list(zip(found, [*found[1:], found[0]], strict=True))
    deadline = time.monotonic() + budget_s
    opinions = []
    for server, client in pairs if len(found) > 2 else pairs[:1]:
        if time.monotonic() < deadline:
            opinions.append(measure(tool, server, client, node))
        else:
            opinions.append(_opinion(server, client, node, None, f"not measured: {budget_s:g} s were over"))
    return tuple(opinions)


def measure(tool: str, server: Nic, client: Nic, node: Snapshot, limit_s: float = LIMIT_S) -> Opinion:
    """One run, which ends within the limit whatever the tool does."""
    port = _free_port()
    environ = {**os.environ, "LC_ALL": "C"}
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(child.finish, command(tool, server, port), limit_s, environ)
        time.sleep(SERVER_S)
        try:
            sent = child.finish((*command(tool, client, port), "127.0.0.1"), limit_s, environ)
        except OSError as error:
            sent = Finished(b"", str(error).encode(), 127)
        return opinion(server, client, node, sent, serving)


def opinion(server: Nic, client: Nic, node: Snapshot, sent: Finished, serving: Future[Finished]) -> Opinion:
    """What the client printed, beside what the ports should do."""
    measured = parse(sent.stdout.decode("utf-8", "replace"))
    problem = ""
    if measured is None:
        problem = _problem(sent) or _problem(serving.result()) or f"{TOOL} printed no rate"
    return _opinion(server, client, node, measured, problem)


def _opinion(server: Nic, client: Nic, node: Snapshot, measured: float | None, problem: str) -> Opinion:
    nominal = min(value_or(nics.nominal_gbps(nic, node), 0.0) for nic in (server, client))
    share = min(usable_share(nic) for nic in (server, client))
    return Opinion(TOOL, f"{client.label} → {server.label}", nominal, nominal * share, measured, problem)


def _problem(done: Finished) -> str:
    if done.cut:
        return f"{TOOL} {done.cut}"
    words = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
    return f"{TOOL} ended with code {done.code}: {words[-1][:120] if words else 'no message'}" if done.code else ""


def command(tool: str, nic: Nic, port: int) -> tuple[str, ...]:
    """The server's call; the client's has the host behind it."""
    head = (tool, "-d", nic.device.name, "-i", str(nic.port.port), "-p", str(port), "-s", str(MESSAGE_BYTES))
    index = gid_index(nic)
    return (*head, "-n", str(NUM_ITERATIONS), "-F", "--report_gbits", *(() if index is None else ("-x", str(index))))


def gid_index(nic: Nic) -> int | None:
    """Of a RoCE v2 address, an IPv4 one where there is one; None on InfiniBand."""
    if not nic.is_roce:
        return None
    usable = [gid for gid in nics.gids(nic) if gid.type == "RoCE v2"]
    usable.sort(key=lambda gid: nics.gid_kind(gid.gid) != "ipv4")
    return usable[0].index if usable else None


def usable_share(nic: Nic) -> float:
    """Payload of all that goes over the wire, in full packets."""
    mtu = nic.port.active_mtu
    payload = MTU_BYTES if isinstance(mtu, Absent) or mtu <= 0 else mtu
    return payload / (payload + (INFINIBAND_OVERHEAD if nic.is_ib else ETHERNET_OVERHEAD))


def parse(told: str) -> float | None:
    """Average rate in Gb/s, of the last line of the table; None when there is none."""
    header = _HEADER.search(told)
    factor = _UNITS_GBPS.get(header["unit"]) if header else None
    if header is None or factor is None:
        return None
    rates = []
    for line in told[header.end() :].splitlines()[1:]:
        words = line.split()
        if len(words) < 4 or not words[0].isdecimal() or not words[1].isdecimal():
            continue
        try:
            rates.append(float(words[3]) * factor)
        except ValueError:
            return None
    return rates[-1] if rates else None


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
