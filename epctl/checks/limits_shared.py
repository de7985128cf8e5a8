"""What ranks of one node share: memory in /dev/shm, and file descriptors."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Seen, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known
from epctl.core.snapshot import Snapshot
from epctl.core.views import libraries, needs, rights, versions
from epctl.core.views.needs import GPU
from epctl.core.views.sizes import GIB, MIB, told
from epctl.core.wording import counted

SHM_DEFAULT_BYTES, SHM_WANTED_BYTES, SHM_FREE_SHARE = 64 * MIB, GIB, 0.1
"""Default of Docker and Kubernetes; what NCCL's troubleshooting guide gives its containers; share that should be free."""
STALE_SHARE = 0.2
"""Share of /dev/shm from which on left-over files matter."""
GETFD_KERNEL = "5.6"
"""First Linux with pidfd_getfd(2)."""
ETIMEDOUT = 110

_NCCL_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"


@check(
    "LIM-SHM-SMALL",
    area="limits",
    severity="fail",
    title="Shared memory (/dev/shm) is too small or nearly full",
    why="NCCL and the serving frameworks put buffers there; without room they stop, or workers die with a bus error.",
    fix="docker: --shm-size=8g (--ipc=host works, and lets the job into the memory of others); Kubernetes: an emptyDir with medium "
    "Memory on /dev/shm; host: when no job runs remount it with a SIZE above the present one (half of the memory is usual), and clear "
    "what is left over.",
    commands=("df -h /dev/shm", "sudo mount -o remount,size=SIZE /dev/shm"),
    reference="https://github.com/NVIDIA/nccl/issues/290 https://github.com/vllm-project/production-stack/issues/276 "
    + _NCCL_GUIDE,
    needs=(GPU,),
)
def lim_shm_small(context: Context) -> Iterator[Seen]:
    total, free = context.node.host.shm_total_bytes, context.node.host.shm_free_bytes
    if isinstance(total, Absent) and total.absent == "not_found":  # statvfs: the mount point is not there
        yield bad("there is no /dev/shm")
        return
    size = known(total, "size of /dev/shm")
    text = f"size of /dev/shm: {told(size)}"
    if size <= SHM_DEFAULT_BYTES:
        yield bad(f"{text}, the default of containers")
    elif size < SHM_WANTED_BYTES:
        yield bad(f"{text}, less than {told(SHM_WANTED_BYTES)}", severity="warn")
    else:
        yield good(text)
    left = known(free, "free space of /dev/shm")
    text = f"{told(left)} of /dev/shm's {told(size)} are free"
    yield bad(text, severity="warn") if left < size * SHM_FREE_SHARE else good(text)


@check(
    "LIM-SHM-STALE",
    area="limits",
    severity="warn",
    title="Files of dead jobs fill shared memory",
    why="Crashed ranks leave their segments in /dev/shm; later jobs find no room there.",
    fix="On the host see that nobody holds them (a container shows its own processes alone), then delete the orphaned files, best in "
    "the epilogue of jobs; do not share the host's IPC namespace without need.",
    commands=("ls -l /dev/shm", "sudo fuser -v /dev/shm/*"),
    reference="https://github.com/llm-d/llm-d/issues/352 https://github.com/llm-d/llm-d/issues/1381",
    needs=(GPU,),
)
def lim_shm_stale(context: Context) -> Iterator[Seen]:
    files = known(context.node.host.shm_files, "files in /dev/shm")
    total = known(context.node.host.shm_total_bytes, "size of /dev/shm")
    dead = [entry for entry in files if entry.owner_alive is False]
    unclear = [entry for entry in files if isinstance(entry.owner_alive, Absent)]
    held, maybe = sum(entry.size_bytes for entry in dead), sum(entry.size_bytes for entry in unclear)
    if held > total * STALE_SHARE:
        names = ", ".join(entry.name for entry in dead[:4]) + (", …" if len(dead) > 4 else "")
        yield bad(f"{counted(len(dead), 'file')} that no process holds: {told(held)} of {told(total)}, {names}")
    elif held + maybe > total * STALE_SHARE:
        owner = next(entry.owner_alive for entry in unclear)
        if isinstance(owner, Absent):
            yield unread(f"owners of {counted(len(unclear), 'file')} of {told(maybe)} in /dev/shm", owner)
    else:
        yield good(f"{len(dead)} of {len(files)} files of communication libraries are left over, {told(held)}")


@check(
    "LIM-PTRACE",
    area="limits",
    severity="warn",
    title="Ranks may not take file descriptors from each other",
    why="Libraries that share memory by pidfd_getfd stop without it: FlashInfer, and DeepEP 2.5 where its ranks map one another's Engram "
    "storage (an option, hybrid mode).",
    fix="Give the job the capability SYS_PTRACE (docker --cap-add, Kubernetes capabilities.add) and a seccomp profile with "
    "pidfd_getfd, in one PID namespace; Linux 5.6 or newer. kernel.yama.ptrace_scope=0 does it for a host, and lets each process of "
    "a user look into his others: only on nodes that nobody shares, if your rules allow it.",
    commands=("sysctl kernel.yama.ptrace_scope", "grep -E '^(CapEff|Seccomp)' /proc/self/status"),
    reference="https://github.com/flashinfer-ai/flashinfer/issues/2394 https://github.com/moby/moby/issues/45622 "
    "https://github.com/deepseek-ai/DeepEP/blob/main/csrc/kernels/comm/symmetric.hpp",
    needs=(GPU,),
)
def lim_ptrace(context: Context) -> Iterator[Seen]:
    users = [name for profile in context.wants("engram_get") if (name := libraries.installed(context, profile))]
    number = context.node.active.pidfd_getfd
    if isinstance(number, int) and number != ETIMEDOUT:
        text = f"pidfd_getfd between two sibling processes: errno {number}"
        who = f" ({', '.join(users)} may share Engram's memory by it)" if users else ""
        yield good(f"{text}, it works") if number == 0 else bad(f"{text}, refused{who}")
        return
    yield from _ptrace_static(context.node)


def _ptrace_static(node: Snapshot) -> Iterator[Seen]:
    kernel = known(node.host.kernel, "kernel release")
    if versions.below(kernel, GETFD_KERNEL):
        yield bad(f"kernel {kernel} has no pidfd_getfd (Linux {GETFD_KERNEL} has)")
        return
    scope = node.host.ptrace_scope
    # Without the Yama module the file does not exist, and only the plain rules of the kernel hold.
    level = 0 if isinstance(scope, Absent) and scope.absent == "not_found" else known(scope, "kernel.yama.ptrace_scope")
    text = f"kernel.yama.ptrace_scope is {level}"
    if level >= 3:
        yield bad(f"{text}, which refuses everybody")
    elif rights.has(node, "SYS_PTRACE"):
        yield good(f"{text}, {rights.told(node, 'SYS_PTRACE')}")
    elif level >= 1:
        yield bad(f"{text}, {rights.told(node, 'SYS_PTRACE')}")
    elif needs.in_container(node):
        yield unread("whether this container's seccomp profile allows pidfd_getfd", Absent("not_probed"))
    else:
        yield good(text)
