"""What only a process can ask about itself and its machine: limits, capabilities, shared memory, hints of a container."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

SHM = "/dev/shm"  # noqa: S108 - it is looked at, never written
SHM_FILE = re.compile(r"(?:nccl-|psm_|torch_|nvshmem|sem\.[^/]*(?:nccl|nvshmem))")
"""Shared-memory files of NCCL, Python's multiprocessing (vLLM, SGLang), PyTorch and NVSHMEM."""
MAX_SHM_FILES = 4096
SCAN_S = 2.0
"""Longest search for the owners of these files."""

# Inodes of the first namespaces of a kernel (include/linux/proc_ns.h): other ones belong to a container.
_FIRST_PID_NS = 0xEFFFFFFC
_FIRST_IPC_NS = 0xEFFFFFFF

_CGROUP = re.compile(r"(kubepods)|\b(docker|libpod|crio|cri-containerd|buildkit|garden|lxc)[-/.](?!service|socket)")


def main() -> None:
    """Prints the document."""
    document = {
        "hostname": _try(lambda: socket.gethostname()),
        "machine": _try(lambda: os.uname().machine),
        "memlock": _try(lambda: _limit(resource.RLIMIT_MEMLOCK)),
        "nofile": _try(lambda: _limit(resource.RLIMIT_NOFILE)),
        "shm_total": _try(lambda: _shm()[0]),
        "shm_free": _try(lambda: _shm()[1]),
        "cap_effective": _try(lambda: int(_status("CapEff"), 16)),
        "affinity": _try(lambda: _status("Cpus_allowed_list")),
        "uid": _try(os.geteuid),
        "hints": _try(container_hints),
        "private_namespaces": _try(private_namespaces),
        "shm_files": _try(shm_files),
    }
    json.dump(document, sys.stdout)


def _try(action: Callable[[], Any]) -> Any:  # noqa: ANN401 - JSON
    """`action()`, or why it failed."""
    try:
        return action()
    except PermissionError as error:
        return {"error": "permission", "detail": str(error)}
    except (FileNotFoundError, KeyError) as error:
        return {"error": "not_found", "detail": str(error)}
    except (OSError, ValueError) as error:
        return {"error": "failed", "detail": str(error)}


def _limit(which: int) -> int:
    """Soft limit; -1 is unlimited."""
    soft = resource.getrlimit(which)[0]
    return -1 if soft == resource.RLIM_INFINITY or soft >= 1 << 63 else soft


def _shm() -> tuple[int, int]:
    """Bytes in all, and free for this user."""
    found = os.statvfs(SHM)
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def _status(field: str) -> str:
    with open("/proc/self/status") as stream:  # noqa: PTH123
        for line in stream:
            name, _, value = line.partition(":")
            if name == field:
                return value.strip()
    raise KeyError(f"{field} does not stand in /proc/self/status")


def container_hints() -> list[str]:
    """What speaks for a container, strongest first: kubernetes, docker, podman, apptainer, enroot, a name from `container=`,
    or cgroup:WORD."""
    hints: list[str] = []
    if "KUBERNETES_SERVICE_HOST" in os.environ or os.path.exists("/var/run/secrets/kubernetes.io"):  # noqa: PTH110
        hints.append("kubernetes")
    if "APPTAINER_CONTAINER" in os.environ or "SINGULARITY_CONTAINER" in os.environ or _exists("/.singularity.d"):
        hints.append("apptainer")
    if "ENROOT_ROOTFS" in os.environ or any("enroot" in line for line in _root_mounts()):
        hints.append("enroot")
    if _exists("/run/.containerenv"):
        hints.append("podman")
    if _exists("/.dockerenv"):
        hints.append("docker")
    manager = os.environ.get("container", "")  # noqa: SIM112 - systemd's convention
    if re.fullmatch(r"[a-z0-9-]{1,32}", manager):
        hints.append(manager)
    for path in ("/proc/1/cgroup", "/proc/self/cgroup"):
        words = filter(None, map(_CGROUP.search, _lines(path)))
        hints.extend("kubernetes" if word.group(1) else f"cgroup:{word.group(2)}" for word in words)
    return list(dict.fromkeys(hints))


def _exists(path: str) -> bool:
    return os.path.exists(path)  # noqa: PTH110


def _root_mounts() -> list[str]:
    return [line for line in _lines("/proc/self/mountinfo") if line.split(" ")[4:5] == ["/"]]


def _lines(path: str) -> list[str]:
    try:
        with open(path, errors="replace") as stream:  # noqa: PTH123
            return list(stream)
    except OSError:
        return []


def shm_files() -> list[dict[str, Any]]:
    """Files of communication libraries in /dev/shm, and whether a process still holds them."""
    names = sorted(name for name in os.listdir(SHM) if SHM_FILE.match(name))[:MAX_SHM_FILES]  # noqa: PTH208
    if not names:
        return []
    held, hidden = holders({os.path.join(SHM, name) for name in names})  # noqa: PTH118
    found: list[dict[str, Any]] = []
    for name in names:
        path = os.path.join(SHM, name)  # noqa: PTH118
        try:
            size = os.stat(path, follow_symlinks=False).st_blocks * 512  # noqa: PTH116
        except OSError:
            continue  # it went away meanwhile
        alive: Any = True if path in held else hidden or False
        found.append({"name": name, "size": size, "owner_alive": alive})
    return found


def holders(paths: set[str]) -> tuple[set[str], dict[str, str] | None]:
    """Those of `paths` that a process has mapped or open, and why others may be held all the same (None: they are not)."""
    held: set[str] = set()
    hidden = _hidden_processes()
    end = time.monotonic() + SCAN_S
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        if held == paths:
            break
        if time.monotonic() > end:
            return held, {"error": "timed_out", "detail": "too many processes to look at"}
        try:
            held |= _mapped(pid) & paths
            held |= _opened(pid) & paths
        except PermissionError:
            hidden = hidden or {"error": "permission", "detail": "processes of other users cannot be looked at"}
        except OSError:
            continue  # it ended meanwhile
    return held, hidden


def _hidden_processes() -> dict[str, str] | None:
    """Processes that share /dev/shm may live in another PID namespace: pods with hostIPC, containers of one pod."""
    pid_ns, ipc_ns = _namespace("pid"), _namespace("ipc")
    if pid_ns == _FIRST_PID_NS:
        return None
    if pid_ns and ipc_ns not in (0, _FIRST_IPC_NS) and "kubernetes" not in container_hints():
        return None
    return {"error": "permission", "detail": "processes outside of this PID namespace cannot be seen"}


def _namespace(kind: str) -> int:
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino  # noqa: PTH116
    except OSError:
        return 0


def private_namespaces() -> list[str]:
    """Of `ipc` and `pid`, the namespaces of this process that are not the first ones of the kernel."""
    first = {"ipc": _FIRST_IPC_NS, "pid": _FIRST_PID_NS}
    return [kind for kind in first if os.stat(f"/proc/self/ns/{kind}").st_ino != first[kind]]  # noqa: PTH116


def _mapped(pid: str) -> set[str]:
    with open(f"/proc/{pid}/maps", errors="replace") as stream:  # noqa: PTH123
        return {line[line.index(SHM) :].rstrip("\n") for line in stream if SHM in line}


def _opened(pid: str) -> set[str]:
    folder = f"/proc/{pid}/fd"
    found: set[str] = set()
    for number in os.listdir(folder):  # noqa: PTH208
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"{folder}/{number}"))  # noqa: PTH115
    return found


if __name__ == "__main__":
    main()
