"""System limits: locked memory, descriptors, firewall, huge pages."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Seen, Severity, bad, check, good
from epctl.core.context import Context
from epctl.core.fact import Absent, known, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.views import gin, nics, pcie, rights
from epctl.core.views.needs import EFA, GPU, NVML
from epctl.core.views.settings import is_on
from epctl.core.views.sizes import MIB, told

MEMLOCK_FLOOR_BYTES = 512 * MIB
"""Below this the buffers of a start do not fit: NVSHMEM alone takes 512 MiB granules (DeepEP's NVSHMEM_CUMEM_GRANULARITY)."""
DESCRIPTORS_PER_CONTEXT = 14
"""Per rank and GIN context: NCCL's guide counts over 32K descriptors for 144 ranks with 16 contexts."""
GUIDE_CONTEXTS = 16
"""Contexts of that example, for libraries that do not tell theirs."""
DIRECT_CONTEXTS, HYBRID_FAST, HYBRID_PLAIN = 17, 65, 129
"""GIN contexts of DeepEP 2: direct mode; hybrid mode with and without fast atomics (profile deepep-2)."""
LARGE_JOB_RANKS, LARGE_JOB_NOFILE = 64, 131072
"""NCCL's guide (file descriptors): limit that it gives for large jobs."""
USUAL_NR_OPEN = 1048576
"""fs.nr_open where nobody changed it (linux fs/file.c), a hard limit that others set."""
FILE_MAX_FLOOR = 2097152
"""fs.file-max that NCCL's guide sets."""
HUGE_PAGES_PER_CPU = 110
"""2 MiB pages: 110 MB an endpoint, two endpoints a logical CPU (EFA installer; bottlerocket-core-kit#141)."""

_NCCL_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"


@check(
    "LIM-MEMLOCK",
    area="limits",
    severity="fail",
    title="The limit on locked memory is finite",
    why="RDMA registrations pin memory; past this limit they end with ENOMEM, and NCCL, libfabric or NVSHMEM stop at the start.",
    fix="On the host set memlock to unlimited in limits.d (a group, @NAME, in place of * where not everybody may) and in the unit "
    "that starts the jobs (LimitMEMLOCK=infinity for slurmd, containerd, docker; restart it when no job runs); docker: --ulimit "
    "memlock=-1; Kubernetes: capability IPC_LOCK.",
    commands=(
        "printf '%s - memlock unlimited\\n' '*' root | sudo tee /etc/security/limits.d/99-epctl-memlock.conf",
        "ulimit -l",
    ),
    reference="https://github.com/NVIDIA/nccl-tests/issues/206 https://github.com/openucx/ucx/issues/7930 "
    "https://github.com/aws/aws-ofi-nccl/issues/803",
    needs=(GPU,),
)
def lim_memlock(context: Context) -> Iterator[Seen]:
    node = context.node
    limit = known(node.host.memlock_bytes, "limit on locked memory (RLIMIT_MEMLOCK)")
    text = f"RLIMIT_MEMLOCK is {told(limit)}"
    if limit < 0:
        yield good(text)
        return
    small = limit < MEMLOCK_FLOOR_BYTES
    if isinstance(node.rdma.devices, tuple) and not node.rdma.devices:
        where = f"{text}; no RDMA device here registers memory"
        yield bad(where, severity="warn") if small else good(where)
    elif isinstance(node.host.cap_effective, int) and rights.has(node, "IPC_LOCK"):
        yield _lifted(node, f"{text}, {rights.told(node, 'IPC_LOCK')}", small)
    else:
        # RDMA devices that could not be listed may be there.
        yield bad(text, severity=None if small and isinstance(node.rdma.devices, tuple) else "warn")


def _lifted(node: Snapshot, text: str, small: bool) -> Seen:
    """The kernel waives the limit for a process with CAP_IPC_LOCK. Ranks of a container share its capabilities; on a host the
    one who looks may be root and the ranks not."""
    if value_or(node.host.container, "none") != "none":
        return good(f"{text}, which lifts it for this container")
    if small:
        return bad(f"{text}: lifted for this process, it holds for ranks of plain users", severity="warn")
    return good(f"{text}, which lifts it for this process")


def _contexts(context: Context) -> int | None:
    """GIN contexts that the library in use makes; None when none asks for GIN or the library does not tell."""
    if is_on(context, "EP_DISABLE_GIN"):
        return None
    if not (context.profile("deepep-2") or context.profile("deepep-2.5")):
        return None
    if context.num_nodes == 1:
        return DIRECT_CONTEXTS
    cards = [nic.device for nic in nics.fabric(context) if nic.active]
    fast = bool(cards) and all(nics.atomics(card) == "fast" for card in cards)
    return HYBRID_FAST if fast else HYBRID_PLAIN


@check(
    "LIM-NOFILE",
    area="limits",
    severity="fail",
    title="The limit on open files is too low for the planned job",
    why="NCCL opens descriptors for each rank and GIN context; large jobs stop with 'too many open files' when they connect.",
    fix="Raise the soft limit in the job's script, up to the hard one (ulimit -Hn); beyond it set nofile in limits.d and in the unit that "
    "starts the jobs (LimitNOFILE=; restart it when no job runs). The kernel takes none above fs.nr_open: raise that first where it is "
    "lower, and keep a hard limit that is higher.",
    reference=f"{_NCCL_GUIDE} https://github.com/NVIDIA/nccl/issues/550",
    needs=(NVML,),
)
def lim_nofile(context: Context) -> Iterator[Seen]:
    limit = known(context.node.host.nofile, "limit on open files (RLIMIT_NOFILE)")
    num_ranks = len(pcie.gpus(context.node)) * context.num_nodes
    if limit < 0:
        yield good("RLIMIT_NOFILE is unlimited")
        return
    contexts, need = _contexts(context), 0
    if gin.wanted(context) and not is_on(context, "EP_DISABLE_GIN"):
        count = contexts or GUIDE_CONTEXTS
        need = DESCRIPTORS_PER_CONTEXT * num_ranks * count
        text = f"RLIMIT_NOFILE is {limit}, {num_ranks} ranks with {count} GIN contexts take about {need}"
        severity: Severity = "info" if context.num_nodes == 1 else "fail" if contexts else "warn"
        yield bad(text, severity=severity, commands=_descriptors(need)) if limit < need else good(text)
    if num_ranks >= LARGE_JOB_RANKS and limit < LARGE_JOB_NOFILE:
        text = f"RLIMIT_NOFILE is {limit}, below {LARGE_JOB_NOFILE} for {num_ranks} ranks"
        yield bad(text, severity="warn", commands=_descriptors(max(need, LARGE_JOB_NOFILE)))
    else:
        yield good(f"RLIMIT_NOFILE is {limit} for {num_ranks} ranks")


def _descriptors(need: int) -> tuple[str, ...]:
    """A look at the limits, and lines that lift them to the next power of two from `need` and NCCL's number on: above the present
    limit, as that is too low for either."""
    soft = 1 << (max(need, LARGE_JOB_NOFILE) - 1).bit_length()
    file = "/etc/security/limits.d/99-epctl-nofile.conf"
    return (
        "ulimit -Hn",
        "sysctl fs.nr_open",
        f"ulimit -S -n {soft}",
        f"printf '%s nofile %s\\n' '* soft' {soft} '* hard' {max(soft, USUAL_NR_OPEN)} | sudo tee {file}",
    )


@check(
    "LIM-FILEMAX",
    area="limits",
    severity="warn",
    title="The limit on open files of the whole system was lowered",
    why="All ranks of a node draw on it together, whatever their own limits are.",
    fix="Remove the setting of fs.file-max from sysctl.d, or raise it.",
    commands=("sudo sysctl -w fs.file-max=2097152",),
    reference=_NCCL_GUIDE,
    needs=(GPU,),
)
def lim_filemax(context: Context) -> Iterator[Seen]:
    limit = known(context.node.host.file_max, "/proc/sys/fs/file-max")
    text = f"fs.file-max is {limit} (/proc/sys/fs/file-max)"
    yield bad(f"{text}, below {FILE_MAX_FLOOR}") if limit < FILE_MAX_FLOOR else good(text)


@check(
    "LIM-PORTS-FIREWALL",
    area="limits",
    severity="warn",
    title="A firewall of this node drops what it does not know",
    why="Bootstrap and rendezvous listen on ephemeral ports; where these are not open between nodes, connects time out.",
    fix="Open net.ipv4.ip_local_port_range and MASTER_PORT between the nodes (or narrow the range and open that); test it from "
    "another node.",
    commands=("sudo nft list chains", "sysctl net.ipv4.ip_local_port_range"),
    reference=f"https://github.com/NVIDIA/nccl/issues/352 {_NCCL_GUIDE}",
    needs=(GPU, gin.SEVERAL_NODES),
)
def lim_ports_firewall(context: Context) -> Iterator[Seen]:
    policy = known(context.node.host.firewall, "firewall (nftables)")
    ports = context.node.host.port_range
    span = f"ports {ports[0]}-{ports[1]}" if isinstance(ports, tuple) else "the ephemeral ports"
    if policy == "drop":
        yield bad(
            f"the input hook drops or rejects by default; whether {span} are open to the other nodes is not told by it"
        )
    else:
        yield good(f"no default drop of incoming packets (firewall: {policy})")


@check(
    "LIM-EFA-HUGEPAGES",
    area="limits",
    severity="info",
    title="Fewer huge pages than libfabric plans for on EFA",
    why="The EFA provider takes its buffers from 2 MiB pages; without enough of them it falls back to small ones.",
    fix="Set vm.nr_hugepages as the EFA installer does, when no job runs: these pages leave the memory of everything else; and request "
    "hugepages-2Mi in the pod.",
    reference="https://github.com/bottlerocket-os/bottlerocket-core-kit/pull/141 "
    "https://github.com/awslabs/libfabric-ci-scripts/pull/158",
    needs=(EFA,),
)
def lim_efa_hugepages(context: Context) -> Iterator[Seen]:
    total = context.node.host.hugepages_2m_total
    if isinstance(total, Absent) and total.absent == "unsupported":
        yield bad(f"no huge pages of 2 MiB: {total}")
        return
    cpus = known(context.node.host.num_cpus, "number of CPUs")
    have, plan = known(total, "huge pages of 2 MiB"), HUGE_PAGES_PER_CPU * cpus
    text = f"{have} huge pages of 2 MiB, the EFA installer sets {plan} for {cpus} CPUs"
    if have >= plan:
        yield good(text)
    else:
        yield bad(f"{text} ({told(plan * 2 * MIB)})", commands=(f"sudo sysctl -w vm.nr_hugepages={plan}",))
