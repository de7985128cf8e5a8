"""Software of a machine: user-space RDMA, Python packages, compilers, environment, and what the active probes find."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from epctl.probes.source import Output
from tests.samples.nvml import Board
from tests.samples.parts import Part

SITE = "/opt/venv/lib/python3.12/site-packages"
NOT_SUPPORTED_WITHOUT_IMEX = 800
"""CUDA_ERROR_NOT_PERMITTED: what a FABRIC allocation gives without an IMEX channel."""
_EBADF = 9


def _none(what: str) -> dict[str, str]:
    return {"error": "not_found", "detail": what}


class Python(Struct, frozen=True):
    """The examined interpreter. `deep_ep`: (distribution, version) of the EP library that brings the module deep_ep."""

    nccl: str
    distributions: dict[str, str]
    torch: str = "2.11.0+cu130"
    nccl_pin: str = "2.28.9"
    nvshmem: str = "3.4.5"
    deep_ep: tuple[str, str] | None = None
    plugins: tuple[dict[str, Any], ...] = ()
    kernels: int = 14
    """Compiled kernels in the JIT cache of DeepEP."""
    machine: str = "x86_64"


def python(told: Python) -> Part:
    """Document of the collector `python`."""
    nccl = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
    nvshmem = f"{SITE}/nvidia/nvshmem/lib/libnvshmem_host.so.3"
    listed = {
        "torch": told.torch.partition("+")[0],
        "nvidia-nccl-cu13": told.nccl,
        "nvidia-nvshmem-cu13": told.nvshmem,
        "nvidia-cuda-runtime-cu13": "13.0.48",
        "nvidia-ml-py": "13.580.82",
        "numpy": "2.3.4",
        "triton": "3.6.0",
        "epctl": "0.1.0",
        **told.distributions,
    }
    builds = []
    if told.deep_ep is not None:
        listed[told.deep_ep[0]] = told.deep_ep[1]
        builds.append(
            {
                "distribution": told.deep_ep[0],
                "version": told.deep_ep[1],
                "path": f"{SITE}/deep_ep",
                "nccl_built": told.nccl,
                "torch_built": _none("its build does not tell"),
                "needed_missing": [],
                "undefined_nccl_symbols": [],
                "release": told.deep_ep[1],
                "warp_get": False,
            }
        )
    document = {
        "python": "3.12.3",
        "executable": "/opt/venv/bin/python",
        "glibc": "2.39",
        "distributions": [{"name": name, "version": version} for name, version in sorted(listed.items())],
        "torch": {"version": told.torch, "cuda": "13.0", "nccl_pin": told.nccl_pin, "folder": f"{SITE}/torch"},
        "nccl": [{"origin": "package", "path": nccl, "real_path": nccl, "version": told.nccl}],
        "nccl_effective": {
            "path": nccl,
            "version": told.nccl,
            "headers": told.nccl,
            "gin_get": True,
            "gin_warp_get": False,
            "genk": False,
        },
        "nvshmem": [{"origin": "package", "path": nvshmem, "real_path": nvshmem, "version": told.nvshmem}],
        "net_plugins": list(told.plugins),
        "roots": [],
        "deep_ep": builds,
        "jit_caches": [
            _cache("deepep", "/root/.deep_ep", told.kernels if told.deep_ep else 0),
            _cache("deepgemm", "/root/.deep_gemm", 0),
            _cache("epctl", "/root/.cache/epctl", 0),
        ],
    }
    imported: Any = "" if told.deep_ep else {"error": "not_found", "detail": "deep_ep is not installed"}
    return Part(documents={"python": document, "active_import": {"error_line": imported}})


def _cache(owner: str, path: str, entries: int) -> dict[str, Any]:
    return {
        "owner": owner,
        "path": path,
        "exists": entries > 0,
        "filesystem": "ext4",
        "writable": True,
        "entries": entries,
    }


def toolchain(cuda: str, release: str, gxx: str = "13.3.0") -> Part:
    """A complete toolkit in /usr/local/cuda-`cuda`, g++ with <format>, elfutils; and a compile that works."""
    home = f"/usr/local/cuda-{cuda}"
    document = {
        "cuda_home": home,
        "cuda_home_origin": "/usr/local/cuda",
        "nvcc": "/usr/local/cuda/bin/nvcc",
        "nvcc_version": release,
        "gxx": "/usr/bin/g++",
        "gxx_version": gxx,
        "nvcc_ccbin": _none("NVCC_CCBIN is not set"),
        "cxx_format": True,
        "libdwfl_header": True,
        "libdw": True,
        "has_cuda_runtime_h": True,
        "has_cccl": True,
        "usr_local_cuda": home,
        "cpath_cuda_versions": [],
    }
    return Part(documents={"toolchain": document, "active_nvcc": {"ok": True, "message": ""}})


def environment(**variables: str) -> Part:
    """Document of the collector `environment`, and no configuration file of NCCL."""
    return Part(documents={"environment": {"variables": variables, "withheld": [], "home": "/root"}})


_LIBRARIES: dict[str, tuple[str, list[str], list[str]]] = {
    "libibverbs": (
        "libibverbs.so.1.14.50.0",
        ["IBVERBS_1.0", "IBVERBS_1.1", *(f"IBVERBS_1.{i}" for i in range(5, 15)), "IBVERBS_PRIVATE_50"],
        ["ibv_reg_dmabuf_mr", "ibv_reg_mr_iova2"],
    ),
    "libmlx5": (
        "libmlx5.so.1.25.50.0",
        [f"MLX5_1.{i}" for i in range(26)],
        ["mlx5dv_devx_alloc_uar", "mlx5dv_get_data_direct_sysfs_path", "mlx5dv_reg_dmabuf_mr"],
    ),
    "libefa": ("libefa.so.1.3.50.0", [f"EFA_1.{i}" for i in range(4)], ["efadv_query_qp_wqs"]),
    "librdmacm": ("librdmacm.so.1.3.50.0", ["RDMACM_1.0", "RDMACM_1.1", "RDMACM_1.2", "RDMACM_1.3"], []),
}
PROVIDERS = ("bnxt_re", "efa", "erdma", "hns", "irdma", "mana", "mlx4", "mlx5", "rxe", "siw")


def libraries(folder: str, gdrapi: str, more: dict[str, Any] | None = None) -> Part:
    """User-space RDMA of rdma-core 50 or its like, GDRCopy's library, and the configuration of libibverbs."""
    found: dict[str, Any] = {
        name: {
            "path": f"{folder}/{name}.so.1",
            "real_path": f"{folder}/{real}",
            "soname": f"{name}.so.1",
            "versions": versions,
            "symbols": symbols,
            "needed": ["libnl-route-3.so.200", "libnl-3.so.200", "libc.so.6"],
        }
        for name, (real, versions, symbols) in _LIBRARIES.items()
    }
    found["libfabric"] = _none("the loader finds no libfabric.so.1")
    found["libgdrapi"] = {
        "path": f"{folder}/libgdrapi.so.2",
        "real_path": f"{folder}/libgdrapi.so.{gdrapi}",
        "soname": "libgdrapi.so.2",
        "versions": [],
        "symbols": [],
        "needed": ["libc.so.6"],
    }
    providers = {name: f"{folder}/libibverbs/lib{name}-rdmav34.so" for name in PROVIDERS}
    return Part(
        files={f"/etc/libibverbs.d/{name}.driver": f"driver {name}\n" for name in PROVIDERS},
        documents={"libraries": {"libraries": {**found, **(more or {})}, "providers": providers}},
    )


def kernel_modules(kernel: str, peermem: str, gdrdrv: str) -> Part:
    """modinfo of nvidia_peermem and gdrdrv, and the versions of those that are loaded ('' for one that is not)."""
    folder = f"/lib/modules/{kernel}/updates/dkms"
    files: dict[str, Any] = {}
    commands: dict[tuple[str, ...], Any] = {}
    for name, file, version, depends in (
        ("nvidia_peermem", "nvidia-peermem.ko.zst", peermem, "ib_core,nvidia"),
        ("gdrdrv", "gdrdrv.ko.zst", gdrdrv, "nvidia"),
    ):
        if version:
            files[f"/sys/module/{name}/version"] = version + "\n"
            commands[("modinfo", name)] = (
                f"filename:       {folder}/{file}\nversion:        {version}\nlicense:        Dual MIT/GPL\n"
                f"depends:        {depends}\nname:           {name}\nvermagic:       {kernel} SMP preempt mod_unload modversions\n"
            )
        else:
            commands[("modinfo", name)] = Output(b"", f"modinfo: ERROR: Module {name} not found.\n".encode(), 1)
    return Part(files=files, commands=commands)


def active(board: Board, cards: tuple[str, ...], fabric: int = NOT_SUPPORTED_WITHOUT_IMEX) -> Part:
    """What the active probes find where everything works. `fabric`: code of a FABRIC allocation."""
    count = len(board.pci)
    flags = dict.fromkeys(("posix_handles", "gdr_with_vmm", "dma_buf", "fabric_handles", "multicast"), True)
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    stages: list[dict[str, Any]] = [
        {"begin": "init"},
        {"stage": "init", "code": 0},
        {"begin": "version"},
        {"stage": "version", "version": board.cuda},
        {"begin": "devices"},
        {
            "stage": "devices",
            "devices": [{"ordinal": i, "uuid": board.uuid(i), "num_sms": board.num_sms, **flags} for i in range(count)],
        },
        {"begin": "posix"},
        {"stage": "posix", "code": 0},
        {"begin": "fabric"},
        {"stage": "fabric", "code": fabric},
        {"stage": "access", "pairs": [[a, b, True] for a, b in pairs]},
        *({"begin": f"context {i}"} for i in range(count)),
    ]
    for a, b in pairs:
        stages += [{"begin": f"copy {b} to {a}"}, {"stage": "copy", "a": a, "b": b, "ok": True}]
    return Part(
        documents={
            "active_cuda": {"stages": [*stages, {"stage": "end"}], "ended": "", "detail": ""},
            "active_verbs": {"stages": _verbs(sorted(cards)), "ended": "", "detail": ""},
            "active_pidfd": {"errno": 0},
            "active_gin": {"stages": _gin(cards), "ended": "", "detail": ""},
        }
    )


def _gin(cards: tuple[str, ...]) -> list[dict[str, Any]]:
    """GDAKI is a matter of mlx5 adapters."""
    rounds = {"proxy": 21_000, "gdaki": 9_000} if any(card.startswith("mlx5") for card in cards) else {"proxy": 34_000}
    trials = [
        {"stage": "trial", "emulated": False, "name": name, "outcome": "ok", "detail": "", "round_ns": round_ns}
        for name, round_ns in rounds.items()
    ]
    return [*trials, {"stage": "end", "tried": len(trials)}]


def _verbs(names: list[str]) -> list[dict[str, Any]]:
    """Every adapter opens and registers DMA-BUF memory; DevX is a matter of mlx5 alone."""
    no_devx = {"error": "unsupported", "detail": "mlx5dv_is_supported says no"}
    steps: tuple[tuple[str, dict[str, Any]], ...] = (
        ("open", {"errno": 0, "opened": True}),
        ("dmabuf", {"errno": _EBADF}),
        ("devx", {"errno": 0}),
        ("gpu", {"errno": 0}),
    )
    found: list[dict[str, Any]] = [{"begin": "list"}, {"stage": "list", "devices": names}]
    for stage, told in steps:
        if stage == "gpu":
            found.append({"begin": "gpu memory"})
        for name in names:
            foreign = stage == "devx" and not name.startswith("mlx5")
            found.append({"begin": f"{stage} of {name}"})
            found.append({"stage": stage, "device": name, **({"errno": no_devx} if foreign else told)})
    return [*found, {"stage": "end"}]
