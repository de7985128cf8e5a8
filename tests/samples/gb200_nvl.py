"""Sample `gb200-nvl`: a compute tray of a GB200 NVL72 rack, with IMEX."""

from __future__ import annotations

from epctl.probes.source import Output
from tests.samples import cards, linux, network, nvidia, nvml, pci, userland
from tests.samples.cards import Card
from tests.samples.network import Interface
from tests.samples.nvml import BLACKWELL_COUNTERS, Board
from tests.samples.parts import Part, Sample
from tests.samples.pci import Function

DRIVER, KERNEL = "580.95.05", "6.8.0-1039-nvidia-64k"
LIB = "/usr/lib/aarch64-linux-gnu"
TRAYS, OWN_TRAY = 18, 6
CPUS = ("0-71", "72-143")
GPUS = ("0008:01:00.0", "0009:01:00.0", "0018:01:00.0", "0019:01:00.0")
NUMA = (0, 0, 1, 1)
NICS = (
    ("mlx5_0", "0000:03:00.0", 0),
    ("mlx5_1", "0002:03:00.0", 0),
    ("mlx5_4", "0010:03:00.0", 1),
    ("mlx5_5", "0012:03:00.0", 1),
)
DPU = (("mlx5_2", "0006:03:00.0"), ("mlx5_3", "0006:03:00.1"))
CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"
ROOT_PORT_ACS = 0x001D
"""SrcValid, ReqRedir, CmpltRedir and UpstreamFwd: what the kernel sets at root ports behind an SMMU."""
HEALTHY_MASK = 0x11AA
"""Bandwidth, routes and timeouts in order (2 in each two-bit field), configuration right, partition assigned."""
DEFAULT_PARTITION = 32766
_SERVICES = ("nvidia-imex", "nvidia-persistenced")
_NONE_NEAR = "SYS"
_CPU = """BogoMIPS\t: 2000.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 sm4 \
asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm sb paca pacg dcpodp sve2 sveaes svepmull svebitperm svesha3 svesm4
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd4f
CPU revision\t: 0
"""
_MODULES: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("nvidia_uvm", 4, ()),
    ("nvidia_modeset", 0, ()),
    ("nvidia_peermem", 0, ()),
    ("gdrdrv", 0, ()),
    ("nvidia", 211, ("nvidia_uvm", "nvidia_peermem", "gdrdrv", "nvidia_modeset")),
    ("rdma_ucm", 0, ()),
    ("rdma_cm", 1, ("rdma_ucm",)),
    ("ib_umad", 0, ()),
    ("mlx5_ib", 0, ()),
    ("ib_uverbs", 2, ("rdma_ucm", "mlx5_ib")),
    ("ib_core", 6, ("nvidia_peermem", "rdma_cm", "ib_umad", "rdma_ucm", "mlx5_ib", "ib_uverbs")),
    ("mlx5_core", 1, ("mlx5_ib",)),
)

_CHARACTER_DEVICES = (
    "195 nvidia",
    "195 nvidiactl",
    "231 infiniband_verbs",
    "505 gdrdrv",
    "506 nvidia-uvm",
    "509 nvidia-caps",
    "510 nvidia-caps-imex-channels",
)


def _functions() -> tuple[Function, ...]:
    found: list[Function] = []
    for gpu, numa in zip(GPUS, NUMA, strict=True):
        host = f"{gpu[:4]}:00"
        root = f"{host}:00.0"
        found.append(_bridge(root, host, (), numa, ROOT_PORT_ACS))
        found.append(Function(gpu, "10de", "2941", "030200", host, (root,), numa, CPUS[numa], driver="nvidia"))
    for name, address, numa in (*NICS, (DPU[0][0], DPU[0][1], 0)):
        host = f"{address[:4]}:00"
        root, up, down = f"{host}:00.0", f"{address[:4]}:01:00.0", f"{address[:4]}:02:00.0"
        found += [
            _bridge(root, host, (), numa, ROOT_PORT_ACS),
            _bridge(up, host, (root,), numa, 0),
            _bridge(down, host, (root, up), numa, 0),
        ]
        above = (root, up, down)
        is_dpu = name == DPU[0][0]
        functions = DPU if is_dpu else ((name, address),)
        ids = ("a2dc", "020000") if is_dpu else ("1021", "020700")
        found += [
            Function(pci_, "15b3", *ids, host, above, numa, CPUS[numa], driver="mlx5_core", infiniband=device)
            for device, pci_ in functions
        ]
    return tuple(_in_group(entry, 4 + k) for k, entry in enumerate(found))


def _bridge(address: str, host: str, above: tuple[str, ...], numa: int, acs: int) -> Function:
    ids = ("10de", "22b1") if not above else ("15b3", "197b")
    return Function(address, *ids, "060400", host, above, numa, CPUS[numa], driver="pcieport", acs=acs)


def _in_group(entry: Function, number: int) -> Function:
    from msgspec.structs import replace

    return replace(entry, group=number, group_type="identity")


def _cards(places: dict[str, str]) -> tuple[Card, ...]:
    fabric = [
        Card(
            name,
            address,
            places[address],
            numa,
            4129,
            "NVD0000000074",
            "28.46.1006",
            f"7c8c:0903:0071:{0x2D2F + 0x1140 * i:04x}",
            lid=4000 + 9 * i,
            sm_lid=1,
            netdev=f"ibP{int(address[:4], 16)}p3s0" if address[:4] != "0000" else "ibp3s0",
            busy=301881092 + 77 * i,
        )
        for i, (name, address, numa) in enumerate(NICS)
    ]
    dpu = [
        Card(
            name,
            address,
            places[address],
            0,
            41692,
            "MT_0000000884",
            "32.46.1006",
            f"7c8c:0903:00ad:{0x3CB0 + i:04x}",
            layer="Ethernet",
            rate="200 Gb/sec (2X NDR)" if i == 0 else "40 Gb/sec (4X QDR)",
            lanes=2 if i == 0 else 4,
            lane_gbps=100.0 if i == 0 else 25.0,
            mtu=1024,
            up=i == 0,
            netdev=f"enP6p3s0f{i}np{i}",
            address="10.70.1.106" if i == 0 else "",
            busy=51200433 if i == 0 else 0,
        )
        for i, (name, address) in enumerate(DPU)
    ]
    return tuple(sorted((*fabric, *dpu), key=lambda card: card.name))


def _interfaces(found: tuple[Card, ...]) -> tuple[Interface, ...]:
    return tuple(_interface(i, card) for i, card in enumerate(found))


def _interface(i: int, card: Card) -> Interface:
    tail = card.guid.replace(":", "")
    if card.layer == "InfiniBand":
        pairs = ":".join(tail[k : k + 2] for k in range(0, 16, 2))
        return Interface(
            card.netdev,
            f"00:00:10:29:fe:80:00:00:00:00:00:00:{pairs}",
            mtu=4092,
            speed=400000,
            place=card.place,
            addresses=(f"10.71.{i}.106/24",),
            kind="infiniband",
        )
    mac = ":".join((tail[:2], tail[2:4], tail[4:6], tail[10:12], tail[12:14], tail[14:]))
    if not card.up:
        return Interface(card.netdev, mac, place=card.place, up=False, pfc=())
    addresses = (f"{card.address}/24",)
    return Interface(card.netdev, mac, speed=200000, place=card.place, addresses=addresses, gateway="10.70.1.1", pfc=())


def _topology() -> Part:
    size = len(GPUS) + len(NICS) + len(DPU)
    ports = {len(GPUS) + 2, len(GPUS) + 3}
    rows = tuple(tuple(_cell(a, b, ports) for b in range(size)) for a in range(size))
    near = ("0,2-17", "1,18-33")
    cpus = tuple((CPUS[numa], near[numa], str(2 + 8 * i)) for i, numa in enumerate(NUMA))
    return nvidia.topology(rows, tuple(f"mlx5_{i}" for i in range(len(NICS) + len(DPU))), cpus)


def _cell(a: int, b: int, ports: set[int]) -> str:
    if a == b:
        return "X"
    if a < len(GPUS) and b < len(GPUS):
        return "NV18"
    return "PIX" if {a, b} == ports else _NONE_NEAR


def _system() -> linux.System:
    return linux.System(
        hostname="nvl72-r2-t06",
        os="Ubuntu 24.04.3 LTS",
        kernel=KERNEL,
        cmdline=f"BOOT_IMAGE=/boot/vmlinuz-{KERNEL} root=UUID=5b2f3c84-6d0e-4f0a-9d0e-2f7f4d1f7a10 ro iommu.passthrough=1 init_on_alloc=0",
        cpu=_CPU,
        num_cpus=144,
        memory_kb=1003245568,
        vendor="NVIDIA",
        product="GB200 NVL",
        bios_date="07/18/2025",
        modules=_MODULES,
        character_devices=_CHARACTER_DEVICES,
        machine="aarch64",
        compiled="#39-Ubuntu SMP PREEMPT_DYNAMIC",
    )


def build() -> tuple[Part, ...]:
    """The parts of the node."""
    functions = _functions()
    found = _cards({entry.pci: entry.place for entry in functions})
    board = Board(
        "NVIDIA GB200",
        GPUS,
        NUMA,
        tuple(CPUS[numa] for numa in NUMA),
        DRIVER,
        198674743296,
        197931081728,
        1 << 38,
        2062,
        3996,
        0x7B1D05,
        capability=(10, 0),
        architecture=10,
        num_sms=152,
        link_mbps=53125,
        link_version=7,
        counters=BLACKWELL_COUNTERS,
        cluster="7b7ed6a2c3f14d0e9a5c1d2e3f405162",
        clique=DEFAULT_PARTITION,
        health=(HEALTHY_MASK, 1),
    )
    driver = nvidia.Driver(
        DRIVER,
        LIB,
        "Tue Sep 23 10:02:41 UTC 2025",
        machine="aarch64",
        services=_SERVICES,
        active=_SERVICES,
        imex_channel=1,
        log=tuple(f"mlx5_core {address}: firmware version: 28.46.1006" for _, address, _ in NICS),
        log_head=f"Linux version {KERNEL} (buildd@bos03-arm64-012) (aarch64-linux-gnu-gcc-13 13.3.0) #39-Ubuntu SMP PREEMPT_DYNAMIC",
    )
    domain = tuple((f"10.70.1.{100 + k}", f"nvl72-r2-t{k:02}") for k in range(TRAYS))
    hcas = ",".join(name for name, _, _ in NICS)
    front = next(card.netdev for card in found if card.layer == "Ethernet" and card.up)
    return (
        linux.system(_system()),
        pci.tree(functions),
        _topology(),
        nvml.gpus(board),
        nvidia.driver(driver, len(GPUS), ("/dev/gdrdrv", CHANNEL)),
        nvidia.imex(DRIVER, domain),
        cards.cards(found),
        network.network(_interfaces(found)),
        Part(commands={("ofed_info", "-s"): Output(b"OFED-internal-25.10-1.7.1:\n")}),
        userland.libraries(LIB, "2.5"),
        userland.kernel_modules(KERNEL, DRIVER, "2.5.1"),
        userland.python(userland.Python("2.32.3", {}, deep_ep=("deepinfer-ep", "2.5.0"))),
        userland.toolchain("13.1", "13.1.80"),
        userland.environment(NCCL_IB_HCA=f"={hcas}", NCCL_SOCKET_IFNAME=front),
        userland.active(board, tuple(card.name for card in found), fabric=0),
    )


SAMPLE = Sample(
    "Compute tray of a GB200 NVL72 rack, 4 × ConnectX-7 NDR InfiniBand, IMEX up, DeepEP 2.5: healthy (composed)", build
)
