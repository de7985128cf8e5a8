"""Sample `laptop`: no NVIDIA GPU, no RDMA; a plain user looks at it."""

from __future__ import annotations

from epctl.probes.driver_services import RUNNING, SHOW
from epctl.probes.source import Output
from tests.samples import linux, network, pci
from tests.samples.network import Interface
from tests.samples.parts import Part, Sample
from tests.samples.pci import Function

KERNEL = "6.14.0-33-generic"
_WLAN = "0000:00:14.3"
_CPU = """vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 170
model name\t: Intel(R) Core(TM) Ultra 7 155U
stepping\t: 4
cpu cores\t: 12
flags\t\t: fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat clflush sse sse2 ht syscall nx lm vmx avx avx2
"""
_SERVICES = "\n".join(
    f"Id={name}\nLoadState=not-found\nActiveState=inactive\n" for name in SHOW if name.endswith(".service")
)
_HIDDEN_LOG = (
    b"Hint: You are currently not seeing messages from other users and the system.\n"
    b"      Users in groups 'adm', 'systemd-journal' can see all messages.\n"
    b"      Pass -q to turn off this notice.\n"
)


def _no(what: str) -> dict[str, str]:
    return {"error": "not_found", "detail": what}


def _functions() -> tuple[Function, ...]:
    return tuple(
        Function(address, "8086", device, kind, "0000:00", (), 0, "0-13", None, driver, 1 + k, "DMA-FQ")
        for k, (address, device, kind, driver) in enumerate(
            (
                ("0000:00:02.0", "7d45", "030000", "i915"),
                ("0000:00:06.0", "7e4d", "010802", "nvme"),
                (_WLAN, "7e40", "028000", "iwlwifi"),
            )
        )
    )


def _documents() -> Part:
    torch = dict.fromkeys(("version", "cuda", "nccl_pin"), _no("PyTorch is not installed"))
    python = {
        "python": "3.12.3",
        "executable": "/home/user/.venvs/epctl/bin/python",
        "glibc": "2.39",
        "distributions": [{"name": "epctl", "version": "0.1.0"}, {"name": "nvidia-ml-py", "version": "13.580.82"}],
        "torch": {**torch, "folder": ""},
        "nccl": [],
        "nccl_effective": dict.fromkeys(
            ("path", "version", "headers", "gin_get", "gin_warp_get", "genk"), _no("no libnccl")
        ),
        "nvshmem": [],
        "net_plugins": [],
        "roots": [],
        "deep_ep": [],
        "jit_caches": [],
    }
    libraries = {
        name: _no(f"the loader finds no {name}.so.1")
        for name in ("libibverbs", "libmlx5", "libefa", "librdmacm", "libfabric", "libgdrapi")
    }
    toolkit = _no("no CUDA toolkit: CUDA_HOME, nvcc, /usr/local/cuda, pip")
    toolchain = {
        **dict.fromkeys(("cuda_home", "nvcc", "nvcc_version", "has_cuda_runtime_h", "has_cccl"), toolkit),
        "cuda_home_origin": "",
        "gxx": "/usr/bin/g++",
        "gxx_version": "13.3.0",
        "nvcc_ccbin": _no("NVCC_CCBIN is not set"),
        "cxx_format": True,
        "libdwfl_header": False,
        "libdw": True,
        "usr_local_cuda": _no("no /usr/local/cuda"),
        "cpath_cuda_versions": [],
    }
    missing = "cannot open shared object file: No such file or directory"
    drivers = {name: _no(f"{name}: {missing}") for name in ("libcuda.so.1", "libnvidia-ml.so.1")}
    no_cuda = {"stage": "init", "code": _no(f"libcuda.so.1: {missing}")}
    return Part(
        documents={
            "nvml": {"partial": False, "init": {"e": 12, "s": "NVML Shared Library Not Found"}},
            "driver_libraries": {
                "library_path": "",
                "programs": {"nvidia-smi": "", "nvlsm": "", "nv-fabricmanager": ""},
                "libraries": drivers,
            },
            "libraries": {"libraries": libraries, "providers": {}},
            "python": python,
            "toolchain": toolchain,
            "environment": {"variables": {}, "withheld": [], "home": "/home/user"},
            "active_cuda": {"stages": [no_cuda], "ended": "", "detail": ""},
            "active_verbs": {
                "stages": [{"stage": "list", "devices": _no(f"libibverbs.so.1: {missing}")}],
                "ended": "",
                "detail": "",
            },
            "active_gin": {
                "stages": [{"stage": "failed", **_no(f"no CUDA driver: libcuda.so.1: {missing}")}],
                "ended": "",
                "detail": "",
            },
            "active_nvcc": {"ok": {"error": "tool_missing", "detail": "no nvcc"}, "message": ""},
            "active_pidfd": {"errno": 1},
            "active_import": {"error_line": _no("deep_ep is not installed")},
        }
    )


def build() -> tuple[Part, ...]:
    """The parts of the laptop."""
    system = linux.System(
        hostname="laptop",
        os="Ubuntu 24.04.3 LTS",
        kernel=KERNEL,
        cmdline=f"BOOT_IMAGE=/vmlinuz-{KERNEL} root=/dev/mapper/ubuntu--vg-ubuntu--lv ro quiet splash",
        cpu=_CPU,
        num_cpus=14,
        memory_kb=32486016,
        vendor="LENOVO",
        product="21KCCTO1WW",
        bios_date="05/27/2025",
        modules=(("iwlmvm", 0, ()), ("iwlwifi", 1, ("iwlmvm",)), ("i915", 33, ()), ("nvme", 3, ())),
        numa_nodes="0",
        ptrace_scope=1,
        uid=1000,
        memlock=4158210048,
        nofile=1024,
        uptime_s=30112,
    )
    wlan = Interface(
        "wlp0s20f3",
        "10:a5:1d:33:70:4e",
        place=f"/sys/devices/pci0000:00/{_WLAN}",
        addresses=("192.168.1.57/24",),
        gateway="192.168.1.1",
    )
    return (
        linux.system(system),
        pci.tree(_functions()),
        network.network((wlan,)),
        _documents(),
        Part(
            folders={"/dev/char": ("1:1", "1:3", "10:232")},
            commands={
                SHOW: _SERVICES,
                RUNNING: "2 kthreadd\n",
                ("dmesg",): Output(b"", b"dmesg: read kernel buffer failed: Operation not permitted\n", 1),
                ("journalctl", "-k", "-b", "--no-pager", "-o", "cat"): Output(b"-- No entries --\n", _HIDDEN_LOG, 1),
                ("modinfo", "nvidia_peermem"): Output(b"", b"modinfo: ERROR: Module nvidia_peermem not found.\n", 1),
                ("modinfo", "gdrdrv"): Output(b"", b"modinfo: ERROR: Module gdrdrv not found.\n", 1),
            },
        ),
    )


SAMPLE = Sample("Laptop with Ubuntu, no NVIDIA GPU and no RDMA (composed)", build)
