"""What HGX H100 and H200 machines share: the PCI tree of the baseboard, the system around it, the topology text."""

from __future__ import annotations

from tests.samples import nvidia, pci
from tests.samples.linux import System
from tests.samples.nvml import Board
from tests.samples.parts import Part
from tests.samples.pci import GEN3, GEN4, GEN5, Function

NUM_GPUS = 8
LIB = "/usr/lib/x86_64-linux-gnu"
KERNEL = "6.8.0-79-generic"
GPUS = tuple(f"0000:{0x18 + 0x10 * i:02x}:00.0" for i in range(NUM_GPUS))
NICS = tuple(f"0000:{0x19 + 0x10 * i:02x}:00.0" for i in range(NUM_GPUS))
NVSWITCHES = ("0000:05:00.0", "0000:06:00.0", "0000:07:00.0", "0000:08:00.0")
DPU = ("0000:cb:00.0", "0000:cb:00.1")
"""Two ports of a BlueField-3 on the second socket."""
CPUS = ("0-55,112-167", "56-111,168-223")
SWITCH_DEVICES = ("/dev/nvidia-nvswitchctl", *(f"/dev/nvidia-nvswitch{i}" for i in range(4)))
CHARACTER_DEVICES = (
    "195 nvidia",
    "195 nvidiactl",
    "195 nvidia-modeset",
    "231 infiniband_verbs",
    "505 gdrdrv",
    "506 nvidia-uvm",
    "507 nvidia-nvswitch",
    "508 nvidia-nvlink",
    "509 nvidia-caps",
    "510 nvidia-caps-imex-channels",
)
_CPU = """vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8480C
stepping\t: 8
cpu MHz\t\t: 3800.000
cpu cores\t: 56
flags\t\t: fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat clflush sse sse2 ht tm pbe syscall nx pdpe1gb \
rdtscp lm constant_tsc art arch_perfmon rep_good nopl xtopology nonstop_tsc aperfmperf tsc_known_freq pni vmx avx2 avx512f
"""
MODULES: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("nvidia_uvm", 4, ()),
    ("nvidia_drm", 0, ()),
    ("nvidia_modeset", 1, ("nvidia_drm",)),
    ("nvidia_peermem", 0, ()),
    ("gdrdrv", 0, ()),
    ("nvidia", 317, ("nvidia_uvm", "nvidia_peermem", "gdrdrv", "nvidia_modeset")),
    ("rdma_ucm", 0, ()),
    ("rdma_cm", 1, ("rdma_ucm",)),
    ("ib_umad", 0, ()),
    ("mlx5_ib", 0, ()),
    ("ib_uverbs", 2, ("rdma_ucm", "mlx5_ib")),
    ("ib_core", 6, ("nvidia_peermem", "rdma_cm", "ib_umad", "rdma_ucm", "mlx5_ib", "ib_uverbs")),
    ("mlx5_core", 1, ("mlx5_ib",)),
    ("nvme", 3, ()),
)


def socket(i: int) -> int:
    """NUMA node of GPU `i` and the NIC beside it."""
    return 0 if i < NUM_GPUS // 2 else 1


def system(hostname: str, vendor: str, product: str, bios_date: str, numa_balancing: int = 0) -> System:
    """Two Xeons, 2 TB, Ubuntu 24.04, IOMMU in passthrough mode."""
    return System(
        hostname=hostname,
        os="Ubuntu 24.04.3 LTS",
        kernel=KERNEL,
        cmdline=f"BOOT_IMAGE=/vmlinuz-{KERNEL} root=/dev/mapper/vg0-root ro iommu=pt console=tty0 console=ttyS0,115200",
        cpu=_CPU,
        num_cpus=224,
        memory_kb=2113489264,
        vendor=vendor,
        product=product,
        bios_date=bios_date,
        modules=MODULES,
        character_devices=CHARACTER_DEVICES,
        numa_balancing=numa_balancing,
    )


def board(name: str, memory_bytes: int, driver: str, seed: int, down: frozenset[tuple[int, int]]) -> Board:
    """Eight Hopper GPUs behind four NVSwitches. `memory_bytes`: as NVML tells it."""
    return Board(
        name=name,
        pci=GPUS,
        numa=tuple(socket(i) for i in range(NUM_GPUS)),
        cpus=tuple(CPUS[socket(i)] for i in range(NUM_GPUS)),
        driver=driver,
        memory_bytes=memory_bytes,
        free_bytes=memory_bytes - 637 * 1024 * 1024,
        bar1_bytes=(1 << 37) if memory_bytes < 100 << 30 else (1 << 38),
        sm_clock_max=1980,
        memory_clock=2619 if memory_bytes < 100 << 30 else 3201,
        uuid_seed=seed,
        switches=NVSWITCHES,
        down=down,
    )


def functions(gpu_id: str, nic_class: str) -> tuple[Function, ...]:
    """GPUs and NICs in pairs below a PCIe switch each, NVSwitches, a BlueField-3, two disks and the BMC's display."""
    found: list[Function] = []
    for i in range(NUM_GPUS):
        found += _pair(i, gpu_id, nic_class)
    found += _nvswitches()
    up = Function("0000:ca:01.0", "8086", "352a", "060400", "0000:ca", numa=1, cpus=CPUS[1], driver="pcieport", group=7)
    found.append(up)
    found += [
        Function(
            address, "15b3", "a2dc", "020000", "0000:ca", (up.pci,), 1, CPUS[1], driver="mlx5_core", infiniband=name
        )
        for address, name in zip(DPU, ("mlx5_8", "mlx5_9"), strict=True)
    ]
    disk = (GEN4, 4, GEN4, 4)
    found += [
        Function(f"0000:f{k}:00.0", "144d", "a80a", "010802", f"0000:f{k}", (), 1, CPUS[1], disk, "nvme")
        for k in (1, 2)
    ]
    found.append(Function("0000:02:00.0", "1a03", "2000", "030000", "0000:00", (), 0, CPUS[0], None, "ast"))
    return tuple(_in_group(entry, 30 + k) for k, entry in enumerate(found))


def _in_group(entry: Function, number: int) -> Function:
    from msgspec.structs import replace

    return replace(entry, group=number, group_type="identity")


def _pair(i: int, gpu_id: str, nic_class: str) -> list[Function]:
    bus, numa, cpus = 0x18 + 0x10 * i, socket(i), CPUS[socket(i)]
    host = f"0000:{bus - 3:02x}"
    root, switch = f"{host}:01.0", f"0000:{bus - 2:02x}:00.0"
    down = (f"0000:{bus - 1:02x}:00.0", f"0000:{bus - 1:02x}:01.0")

    def bridge(address: str, above: tuple[str, ...], ids: tuple[str, str]) -> Function:
        return Function(address, *ids, "060400", host, above, numa, cpus, driver="pcieport")

    broadcom = ("1000", "c030")
    return [
        bridge(root, (), ("8086", "352a")),
        bridge(switch, (root,), broadcom),
        *(bridge(address, (root, switch), broadcom) for address in down),
        Function(GPUS[i], "10de", gpu_id, "030200", host, (root, switch, down[0]), numa, cpus, driver="nvidia"),
        Function(
            NICS[i],
            "15b3",
            "1021",
            nic_class,
            host,
            (root, switch, down[1]),
            numa,
            cpus,
            driver="mlx5_core",
            infiniband=f"mlx5_{i}",
        ),
    ]


def _nvswitches() -> list[Function]:
    root, switch, link = "0000:00:0c.0", "0000:03:00.0", (GEN3, 2, GEN3, 2)
    up = (GEN3, 8, GEN4, 16)
    found = [
        Function(root, "8086", "352b", "060400", "0000:00", (), 0, CPUS[0], (GEN3, 8, GEN5, 8), "pcieport"),
        Function(switch, "1000", "c010", "060400", "0000:00", (root,), 0, CPUS[0], up, "pcieport"),
    ]
    for k, address in enumerate(NVSWITCHES):
        port = f"0000:04:{k:02x}.0"
        found.append(Function(port, "1000", "c010", "060400", "0000:00", (root, switch), 0, CPUS[0], link, "pcieport"))
        above = (root, switch, port)
        found.append(Function(address, "10de", "22a3", "068000", "0000:00", above, 0, CPUS[0], link, "nvidia-nvswitch"))
    return found


def tree(gpu_id: str, nic_class: str) -> Part:
    """The PCI part. `nic_class`: 020700 InfiniBand, 020000 Ethernet."""
    return pci.tree(functions(gpu_id, nic_class))


def place(address: str, gpu_id: str = "2330", nic_class: str = "020700") -> str:
    """Real path of a function."""
    return next(entry.place for entry in functions(gpu_id, nic_class) if entry.pci == address)


def topology() -> Part:
    """NICs 0 to 7 beside the GPUs, NICs 8 and 9 (the BlueField's ports) on the second socket."""
    near = [socket(i) for i in range(NUM_GPUS)] * 2 + [1, 1]
    size = len(near)
    rows = tuple(tuple(_cell(a, b, near) for b in range(size)) for a in range(size))
    nics = tuple(f"mlx5_{i}" for i in range(size - NUM_GPUS))
    cpus = tuple((CPUS[socket(i)], str(socket(i)), "N/A") for i in range(NUM_GPUS))
    return nvidia.topology(rows, nics, cpus)


def _cell(a: int, b: int, near: list[int]) -> str:
    if a == b:
        return "X"
    if a < NUM_GPUS and b < NUM_GPUS:
        return "NV18"
    if {a, b} == {2 * NUM_GPUS, 2 * NUM_GPUS + 1} or (abs(a - b) == NUM_GPUS and max(a, b) < 2 * NUM_GPUS):
        return "PIX"
    return "NODE" if near[a] == near[b] else "SYS"


def log(driver: str) -> tuple[str, ...]:
    """Lines of the kernel log that drivers of such a machine print at boot."""
    cards = tuple(
        line
        for address in NICS
        for line in (
            f"mlx5_core {address}: firmware version: 28.43.2566",
            f"mlx5_core {address}: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)",
        )
    )
    switches = tuple(f"nvidia-nvswitch{k}: using MSI-X" for k in range(4))
    return (
        *switches,
        f"nvidia-modeset: Loading NVIDIA UNIX Open Kernel Mode Setting Driver for x86_64  {driver}",
        *cards,
    )


LOG_HEAD = (
    f"Linux version {KERNEL} (buildd@lcy02-amd64-002) (x86_64-linux-gnu-gcc-13 13.3.0) #81-Ubuntu SMP PREEMPT_DYNAMIC"
)
