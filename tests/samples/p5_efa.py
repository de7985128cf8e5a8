"""Sample `p5-efa`: an AWS p5.48xlarge with NCCL EP over EFA, through GIN's proxy (P5 has no EFA-GDA)."""

from __future__ import annotations

from typing import Any

from tests.samples import cards, linux, network, nvidia, nvml, pci, userland
from tests.samples.cards import Card
from tests.samples.network import Interface
from tests.samples.nvml import Board
from tests.samples.parts import Part, Sample
from tests.samples.pci import Function

DRIVER, KERNEL = "580.95.05", "6.14.0-1015-aws"
LIB, EFA_LIB, OFI_LIB = "/usr/lib/x86_64-linux-gnu", "/opt/amazon/efa/lib", "/opt/amazon/ofi-nccl/lib"
NUM_GPUS, PER_GPU = 8, 4
CPUS = ("0-47,96-143", "48-95,144-191")
NVSWITCHES = ("0000:10:1c.0", "0000:10:1d.0", "0000:10:1e.0", "0000:10:1f.0")
HUGE_PAGES = 110 * 192 + 1
"""What the EFA installer sets for 192 CPUs."""
_CPU = """vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC 7R13 Processor
stepping\t: 1
cpu cores\t: 48
flags\t\t: fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat clflush mmx fxsr sse sse2 ht syscall nx \
mmxext fxsr_opt pdpe1gb rdtscp lm constant_tsc rep_good nopl nonstop_tsc cpuid extd_apicid aperfmperf pni pclmulqdq avx avx2 \
hypervisor lahf_lm cmp_legacy
"""
_MODULES: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("nvidia_uvm", 4, ()),
    ("nvidia_modeset", 0, ()),
    ("efa_nv_peermem", 0, ()),
    ("gdrdrv", 0, ()),
    ("nvidia", 317, ("nvidia_uvm", "efa_nv_peermem", "gdrdrv", "nvidia_modeset")),
    ("efa", 0, ()),
    ("ib_uverbs", 1, ("efa",)),
    ("ib_core", 2, ("efa", "ib_uverbs")),
    ("ena", 0, ()),
)
_SWITCH_DEVICES = ("/dev/nvidia-nvswitchctl", *(f"/dev/nvidia-nvswitch{i}" for i in range(4)))

_CHARACTER_DEVICES = (
    "195 nvidia",
    "195 nvidiactl",
    "231 infiniband_verbs",
    "505 gdrdrv",
    "506 nvidia-uvm",
    "507 nvidia-nvswitch",
    "509 nvidia-caps",
    "510 nvidia-caps-imex-channels",
)


def _base(i: int) -> int:
    return 0x44 + 0x11 * i


def _gpu(i: int) -> str:
    return f"0000:{_base(i) + 15:02x}:00.0"


def _efa(i: int, k: int) -> str:
    return f"0000:{_base(i) + 11 + k:02x}:00.0"


def _name(i: int, k: int) -> str:
    return f"rdmap{_base(i) + 11 + k}s0"


def _socket(i: int) -> int:
    return 0 if i < NUM_GPUS // 2 else 1


def _functions() -> tuple[Function, ...]:
    found: list[Function] = []
    for i in range(NUM_GPUS):
        base, numa, cpus = _base(i), _socket(i), CPUS[_socket(i)]
        host = f"0000:{base:02x}"
        root = f"{host}:00.0"
        found.append(Function(root, "1d0f", "0200", "060400", host, (), numa, cpus, driver="pcieport", acs=None))
        found += [
            Function(
                _efa(i, k),
                "1d0f",
                "efa1",
                "020000",
                host,
                (root,),
                numa,
                cpus,
                (pci.GEN4, 16, pci.GEN4, 16),
                "efa",
                infiniband=_name(i, k),
            )
            for k in range(PER_GPU)
        ]
        found.append(Function(_gpu(i), "10de", "2330", "030200", host, (root,), numa, cpus, driver="nvidia"))
    found += [
        Function(address, "10de", "22a3", "068000", "0000:10", (), 0, CPUS[0], None, "nvidia-nvswitch")
        for address in NVSWITCHES
    ]
    found.append(Function("0000:00:06.0", "1d0f", "ec20", "020000", "0000:00", (), 0, CPUS[0], None, "ena"))
    found.append(Function("0000:00:04.0", "1d0f", "8061", "010802", "0000:00", (), 0, CPUS[0], None, "nvme"))
    return tuple(found)


def _cards(places: dict[str, str]) -> tuple[Card, ...]:
    return tuple(
        Card(
            _name(i, k),
            _efa(i, k),
            places[_efa(i, k)],
            _socket(i),
            0xEFA1,
            guid=f"{0x400 + 64 * i + 16 * k:04x}:3bff:fe{0x20 + i:02x}:{0x1D07 + 1031 * k:04x}",
            driver="efa",
            layer="Unspecified",
            rate="100 Gb/sec (4X EDR)",
            lane_gbps=25.0,
            busy=133028171 + 1009 * (PER_GPU * i + k),
        )
        for i in range(NUM_GPUS)
        for k in range(PER_GPU)
    )


def _fi_info(names: tuple[str, ...]) -> str:
    ends = (("efa-direct", "rdm", "FI_EP_RDM"), ("efa", "rdm", "FI_EP_RDM"), ("efa", "dgrm", "FI_EP_DGRAM"))
    return "".join(
        f"provider: efa\n    fabric: {fabric}\n    domain: {name}-{short}\n    version: 203.0\n    type: {kind}\n"
        "    protocol: FI_PROTO_EFA\n"
        for name in names
        for fabric, short, kind in ends
    )


def _topology(names: tuple[str, ...]) -> Part:
    near = [*range(NUM_GPUS), *(n // PER_GPU for n in range(len(names)))]
    rows = tuple(tuple(_cell(a, b, near) for b in range(len(near))) for a in range(len(near)))
    cpus = tuple((CPUS[_socket(i)], str(_socket(i)), "N/A") for i in range(NUM_GPUS))
    return nvidia.topology(rows, names, cpus)


def _cell(a: int, b: int, near: list[int]) -> str:
    if a == b:
        return "X"
    if a < NUM_GPUS and b < NUM_GPUS:
        return "NV18"
    if near[a] == near[b]:
        return "PIX"
    return "NODE" if _socket(near[a]) == _socket(near[b]) else "SYS"


def _library(name: str, path: str, versions: list[str], symbols: list[str]) -> dict[str, dict[str, Any]]:
    entry = {"path": path, "real_path": path, "soname": f"{name}.so.1", "versions": versions, "symbols": symbols}
    return {name: {**entry, "needed": ["libibverbs.so.1", "libc.so.6"]}}


def _system() -> linux.System:
    return linux.System(
        hostname="ip-172-31-44-201",
        os="Ubuntu 24.04.3 LTS",
        kernel=KERNEL,
        cmdline=f"BOOT_IMAGE=/boot/vmlinuz-{KERNEL} root=PARTUUID=3c1d2a7e-01 ro console=tty1 console=ttyS0",
        cpu=_CPU,
        num_cpus=192,
        memory_kb=2097152000,
        vendor="Amazon EC2",
        product="p5.48xlarge",
        bios_date="10/16/2017",
        modules=_MODULES,
        character_devices=_CHARACTER_DEVICES,
        virtualization="amazon",
        huge_pages=HUGE_PAGES,
    )


def build() -> tuple[Part, ...]:
    """The parts of the node."""
    functions = _functions()
    board = Board(
        "NVIDIA H100 80GB HBM3",
        tuple(_gpu(i) for i in range(NUM_GPUS)),
        tuple(_socket(i) for i in range(NUM_GPUS)),
        tuple(CPUS[_socket(i)] for i in range(NUM_GPUS)),
        DRIVER,
        85520809984,
        84852867072,
        1 << 37,
        1980,
        2619,
        0x9AC301,
        switches=NVSWITCHES,
    )
    driver = nvidia.Driver(
        DRIVER,
        LIB,
        "Tue Sep 23 10:11:16 UTC 2025",
        fabric_manager=DRIVER,
        registry="",
        log=(
            "efa 0000:4f:00.0: Elastic Fabric Adapter (EFA) found at mem 0000000058100000, mac addr 06:5d:11:20:9a:41",
        ),
        log_head=f"Linux version {KERNEL} (buildd@lcy02-amd64-031) (x86_64-linux-gnu-gcc-13 13.3.0) #15~24.04.1-Ubuntu SMP",
    )
    found = _cards({entry.pci: entry.place for entry in functions})
    names = tuple(card.name for card in found)
    ofi = {"name": "libnccl-net-ofi.so", "path": f"{OFI_LIB}/libnccl-net-ofi.so", "version": "1.22.0"}
    front = Interface(
        "ens6",
        "06:5d:11:20:9a:41",
        mtu=9001,
        place="/sys/devices/pci0000:00/0000:00:06.0",
        addresses=("172.31.44.201/20",),
        gateway="172.31.32.1",
    )
    return (
        linux.system(_system()),
        pci.tree(functions),
        _topology(names),
        nvml.gpus(board),
        nvidia.driver(driver, NUM_GPUS, ("/dev/gdrdrv", *_SWITCH_DEVICES)),
        cards.cards(found, has_ibstat=False),
        network.network((front,)),
        Part(files={"/sys/module/efa/version": "3.3.0g\n"}, commands={("fi_info", "-p", "efa"): _fi_info(names)}),
        userland.libraries(
            LIB,
            "2.5",
            {
                **_library(
                    "libefa", f"{LIB}/libefa.so.1", [f"EFA_1.{i}" for i in range(6)], ["efadv_create_comp_cntr"]
                ),
                **_library("libfabric", f"{EFA_LIB}/libfabric.so.1", [f"FABRIC_1.{i}" for i in range(9)], []),
            },
        ),
        userland.kernel_modules(KERNEL, "", "2.5.1"),
        userland.python(
            userland.Python("2.32.3", {"nccl-ep": "0.2.0"}, plugins=({**ofi, "missing": [], "glibc_needed": "2.34"},))
        ),
        userland.toolchain("13.1", "13.1.80"),
        userland.environment(
            LD_LIBRARY_PATH=f"{OFI_LIB}:{EFA_LIB}",
            NCCL_GIN_TYPE="2",
            NCCL_NET="AWS Libfabric",
            NCCL_NET_PLUGIN="ofi",
            NCCL_SOCKET_IFNAME="ens6",
            NCCL_SYM_GIN_KERNELS_ENABLE="0",
        ),
        userland.active(board, names),
    )


SAMPLE = Sample("AWS p5.48xlarge, 8 × H100 with 32 EFA devices, NCCL EP over GIN's proxy: healthy (composed)", build)
