"""Services beside the driver: fabric manager, IMEX, persistence daemon, NVLink subnet manager."""

from __future__ import annotations

import re
from typing import NamedTuple

from epctl.core.fact import Absent, Fact
from epctl.core.snapshot.gpu import Service
from epctl.probes.reading import clean, first_line
from epctl.probes.source import Output, Source, text

SERVICES = ("nvidia-fabricmanager", "nvidia-imex", "nvidia-persistenced", "nvlsm")
SHOW = ("systemctl", "show", "--no-pager", "-p", "Id,LoadState,ActiveState", *(f"{name}.service" for name in SERVICES))
PID_FILES = {
    "nvidia-fabricmanager": "/run/nvidia-fabricmanager/nv-fabricmanager.pid",
    "nvidia-imex": "/run/nvidia-imex/nvidia-imex.pid",
    "nvidia-persistenced": "/run/nvidia-persistenced/nvidia-persistenced.pid",
    "nvlsm": "/run/nvlsm.pid",
}
"""Written by the daemons themselves: how to find them where there is no systemd, as in a driver container."""
PROCESSES = {"nvidia-fabricmanager": "nv-fabricmanage", "nvidia-imex": "nvidia-imex", "nvlsm": "nvlsm"}
PROCESSES["nvidia-persistenced"] = "nvidia-persiste"
"""Names of the processes: the kernel keeps 15 characters."""
WITNESS = "kthreadd"
"""Process 2 of any Linux. Whoever does not see it does not see the host's processes (container, /proc with hidepid)."""
RUNNING = ("pgrep", "-l", "-x", "|".join((*PROCESSES.values(), WITNESS)))
"""A daemon may run in a container of this host (GPU Operator's driver container, ComputeDomains of the DRA driver), where its
unit of this system is inactive. One command instead of a walk through /proc, which would record every process."""
NODES_FILE = "/etc/nvidia-imex/nodes_config.cfg"
TIMEOUT_S = 5.0
IMEX_TIMEOUT_S = 5.0
MAX_BAD_CELLS = 1024

_FM_VERSION = re.compile(r"\b(\d{3,4}\.\d{1,4}(?:\.\d{1,4}){0,2})\b", re.ASCII)
_DOMAIN = re.compile(r"^[ \t]{0,16}Domain State:[ \t]{0,8}([A-Za-z_]{2,40})", re.MULTILINE)
_STATE = re.compile(r"[a-z-]{1,40}\Z")
_IMEX_ROW = re.compile(r"[ \t]{0,64}(\d{1,5})((?:[ \t]{1,64}\S{1,8})+)[ \t]{0,64}\Z", re.ASCII)


def services(source: Source) -> tuple[Service, ...]:
    """State of each service. One that is not installed is inactive: systemd says so, too."""
    units = _units(source.run(*SHOW, timeout_s=TIMEOUT_S))
    processes = _processes(source.run(*RUNNING, timeout_s=TIMEOUT_S))
    return tuple(_service(source, name, units, processes) for name in SERVICES)


def _service(source: Source, name: str, units: _Units, processes: Fact[frozenset[str]]) -> Service:
    running = _running(PROCESSES[name], processes)
    state: Fact[str] = units.states.get(name) or _by_pid(source, name, units.reason)
    if isinstance(state, Absent) and running is True:
        state = "active"
    return Service(name, state, units.loads.get(name) or units.reason, running)


def _running(process: str, processes: Fact[frozenset[str]]) -> Fact[bool]:
    if isinstance(processes, Absent) or process in processes:
        return processes if isinstance(processes, Absent) else True
    return False if WITNESS in processes else Absent("permission", "the processes of the host cannot be seen from here")


def _processes(found: Output | Absent) -> Fact[frozenset[str]]:
    """Names that `pgrep -l` printed as `PID NAME`. It ends with 1 where no process has one of the names."""
    if isinstance(found, Absent):
        return found
    if found.code not in (0, 1) or found.stderr.strip():
        return Absent("failed", "pgrep does not list processes", first_line(clean(found.stderr[:4096])))
    return frozenset(line.partition(" ")[2].strip() for line in clean(found.stdout).split("\n"))


class _Units(NamedTuple):
    """ActiveState and LoadState by service name, and the reason for those that are not among them."""

    states: dict[str, str]
    loads: dict[str, str]
    reason: Absent


def _units(found: Output | Absent) -> _Units:
    if isinstance(found, Absent):
        return _Units({}, {}, found)
    states: dict[str, str] = {}
    loads: dict[str, str] = {}
    for block in re.split(r"\n[ \t]*\n", clean(found.stdout)):
        settings = {
            name.strip(): value.strip() for name, _, value in (line.partition("=") for line in block.split("\n"))
        }
        name, state = settings.get("Id", "").removesuffix(".service"), settings.get("ActiveState", "")
        if name in SERVICES and _STATE.match(state):
            states[name] = state
            loads |= {name: settings["LoadState"]} if _STATE.match(settings.get("LoadState", "")) else {}
    line = first_line(clean(found.stderr[:4096])) or first_line(clean(found.stdout[:4096]))
    if re.search(r"not been booted with systemd|failed to connect to bus", line, re.IGNORECASE):
        return _Units(states, loads, Absent("unsupported", "systemd does not run here", line))
    return _Units(states, loads, Absent("failed", "systemctl does not tell the state", line))


def _by_pid(source: Source, name: str, reason: Absent) -> Fact[str]:
    """`active` when the process that the daemon's own PID file names is that daemon."""
    if reason.absent == "not_read":
        return reason
    pid = text(source, PID_FILES[name])
    if (
        isinstance(pid, str)
        and re.fullmatch(r"[0-9]{1,10}", pid)
        and text(source, f"/proc/{pid}/comm") == PROCESSES[name]
    ):
        return "active"
    return reason


def fabric_manager_version(source: Source) -> Fact[str]:
    """Version that `nv-fabricmanager --version` prints."""
    found = source.run("nv-fabricmanager", "--version", timeout_s=TIMEOUT_S)
    if isinstance(found, Absent):
        return found
    printed = clean(found.raw[:4096])
    seen = _FM_VERSION.search(printed)
    return seen[1] if seen else Absent("unparsable", "nv-fabricmanager --version names no version", first_line(printed))


def imex_nodes_file(source: Source) -> Fact[bool]:
    """Whether the list of nodes is there, without which the service cannot start. The package does not bring one."""
    found = source.target(NODES_FILE)
    if isinstance(found, Absent):
        return False if found.absent == "not_found" else found
    return True


def imex(source: Source) -> tuple[Fact[str], Fact[tuple[str, ...]]]:
    """State of the IMEX domain, and the cells of its matrix that are not connected."""
    found = source.run("nvidia-imex-ctl", "-H", "-N", timeout_s=IMEX_TIMEOUT_S)
    if isinstance(found, Absent):
        return found, found
    printed = clean(found.raw)
    state = _DOMAIN.search(printed)
    bad = _bad_cells(printed)
    reason = Absent("failed", "nvidia-imex-ctl does not tell the domain's state", first_line(printed))
    return (state[1].upper() if state else reason), (reason if bad is None else bad)


def _bad_cells(printed: str) -> tuple[str, ...] | None:
    """`A-B: X` for every cell of the matrix other than C (`!V!`, a mismatch, is V); None without a whole matrix."""
    columns: list[str] | None = None
    bad: list[str] = []
    rows = 0
    for line in printed.split("\n"):
        if "From\\To" in line:
            columns = line.partition("From\\To")[2].split()
        elif columns and (row := _IMEX_ROW.match(line)):
            cells = [cell.strip("!") for cell in row[2].split()]
            rows += len(cells) == len(columns)
            bad += [f"{row[1]}-{column}: {cell}" for column, cell in zip(columns, cells, strict=False) if cell != "C"]
    return tuple(bad[:MAX_BAD_CELLS]) if columns and (bad or rows == len(columns)) else None
