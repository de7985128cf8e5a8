"""Facts of the software that EP stands on, of the environment, and of the active probes."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from epctl.core.fact import NOT_PROBED, NOT_READ, Fact
from epctl.core.snapshot.gpu import Setting


class Distribution(Struct, frozen=True):
    """One installed Python distribution (name in canonical form: lower case, hyphens)."""

    name: str
    version: str


class SharedLibrary(Struct, frozen=True):
    """One shared library on disk.

    `origin`: loaded (mapped into this interpreter), package (in a Python distribution), loader (what dlopen would pick:
    ldconfig, LD_LIBRARY_PATH, LD_PRELOAD), root (EP_NCCL_ROOT_DIR, NCCL_DIR, …).
    """

    origin: Literal["loaded", "package", "loader", "root"]
    path: str
    real_path: str
    """Links resolved: equal real paths are the same file."""
    version: Fact[str] = NOT_READ
    """2.32.3; read from the file, nothing of it is run."""
    sha256: Fact[str] = NOT_READ
    first: bool = False
    """With origin loader: the one that wins."""


class Root(Struct, frozen=True):
    """A folder that a variable names as the root of a library."""

    variable: str
    path: str
    has_include: Fact[bool] = NOT_READ
    has_lib: Fact[bool] = NOT_READ
    has_device_headers: Fact[bool] = NOT_READ
    """include/nccl_device is there."""


class Toolchain(Struct, frozen=True):
    """Compilers and headers that just-in-time compilation needs."""

    cuda_home: Fact[str] = NOT_READ
    """CUDA_HOME, else CUDA_PATH, else from nvcc on PATH, else /usr/local/cuda; real path."""
    cuda_home_origin: str = ""
    nvcc: Fact[str] = NOT_READ
    nvcc_version: Fact[str] = NOT_READ
    """Release: 13.0 (or 13.0.88)."""
    gxx: Fact[str] = NOT_READ
    gxx_version: Fact[str] = NOT_READ
    nvcc_ccbin: Fact[str] = NOT_READ
    """NVCC_CCBIN, resolved; not_found when it points nowhere."""
    cxx_format: Fact[bool] = NOT_READ
    """Three lines with C++20 <format> compile (g++ -fsyntax-only)."""
    libdwfl_header: Fact[bool] = NOT_READ
    """elfutils/libdwfl.h is found by g++."""
    libdw: Fact[bool] = NOT_READ
    """libdw.so.1 is found by the loader."""
    has_cuda_runtime_h: Fact[bool] = NOT_READ
    has_cccl: Fact[bool] = NOT_READ
    """include/cccl below CUDA_HOME."""
    usr_local_cuda: Fact[str] = NOT_READ
    """Real path of /usr/local/cuda."""
    cpath_cuda_versions: Fact[tuple[str, ...]] = NOT_READ
    """CUDA versions that the folders of CPATH and CPLUS_INCLUDE_PATH belong to (from their version files or names)."""


class JitCache(Struct, frozen=True):
    """The folder where a library keeps what it compiled."""

    owner: str
    """deepep, deepgemm, epctl"""
    path: str
    exists: Fact[bool] = NOT_READ
    filesystem: Fact[str] = NOT_READ
    """nfs, lustre, gpfs, ceph, fuse, ext4, overlay, tmpfs, …"""
    writable: Fact[bool] = NOT_READ
    entries: Fact[int] = NOT_READ


class NetPlugin(Struct, frozen=True):
    """A network plugin library that NCCL's loader would find."""

    name: str
    """libnccl-net-ofi.so"""
    path: str
    version: Fact[str] = NOT_READ
    missing: Fact[tuple[str, ...]] = NOT_READ
    """Libraries it needs that the loader does not find (from its ELF header)."""
    glibc_needed: Fact[str] = NOT_READ
    """Highest GLIBC_x.y that it asks for."""


class DeepEp(Struct, frozen=True):
    """An installed deep_ep / deepinfer-ep, read from its files."""

    distribution: str
    version: str
    path: Fact[str] = NOT_READ
    nccl_built: Fact[str] = NOT_READ
    """NCCL version it was compiled against."""
    torch_built: Fact[str] = NOT_READ
    undefined_nccl_symbols: Fact[tuple[str, ...]] = NOT_READ
    """Symbols nccl* it imports that the libnccl in use does not export."""
    needed_missing: Fact[tuple[str, ...]] = NOT_READ
    """Libraries in its ELF header that are not found."""
    release: Fact[str] = NOT_READ
    """Release of DeepEP that its sources are of (`__version__`; 1 where it has the layout of the first generation). Distributions
    of other names count their own versions: sgl-deep-ep 0.1.0 is a DeepEP 1, 0.1.2 a DeepEP 2.1."""
    warp_get: Fact[bool] = NOT_READ
    """Its Engram kernels ask for ncclGinOptFlagsWarpGet."""


class SoftwareArea(Struct, frozen=True):
    """Python, PyTorch, NCCL and its plugins, NVSHMEM, DeepEP, compilers."""

    python_version: Fact[str] = NOT_READ
    python_executable: Fact[str] = NOT_READ
    glibc_version: Fact[str] = NOT_READ
    distributions: Fact[tuple[Distribution, ...]] = NOT_READ
    """The ones that checks look at, not all."""
    torch_version: Fact[str] = NOT_READ
    torch_cuda: Fact[str] = NOT_READ
    """torch.version.cuda; unsupported for a CPU build."""
    torch_nccl_pin: Fact[str] = NOT_READ
    """Version in torch's requirement on nvidia-nccl-cu1x."""
    nccl: Fact[tuple[SharedLibrary, ...]] = NOT_READ
    nccl_effective: Fact[str] = NOT_READ
    """Version of the libnccl that this interpreter's PyTorch would load (loaded, then LD_PRELOAD and LD_LIBRARY_PATH, then the package)."""
    nccl_effective_path: Fact[str] = NOT_READ
    nccl_headers: Fact[str] = NOT_READ
    """NCCL version of the headers beside that library."""
    nccl_gin_get: Fact[bool] = NOT_READ
    """The device headers beside that library declare GIN's `get` (include/nccl_device/gin.h)."""
    nccl_gin_warp_get: Fact[bool] = NOT_READ
    """They define ncclGinOptFlagsWarpGet, too; those of NCCL's wheels up to 2.32.3 do not."""
    nccl_genk: Fact[bool] = NOT_READ
    """That library knows NCCL_SYM_GENK_ENABLE: it was built with SYM_GENK."""
    nvshmem: Fact[tuple[SharedLibrary, ...]] = NOT_READ
    net_plugins: Fact[tuple[NetPlugin, ...]] = NOT_READ
    roots: tuple[Root, ...] = ()
    deep_ep: Fact[tuple[DeepEp, ...]] = NOT_READ
    toolchain: Toolchain = Toolchain()
    jit_caches: Fact[tuple[JitCache, ...]] = NOT_READ
    notes: tuple[str, ...] = ()


class EnvArea(Struct, frozen=True):
    """Environment variables (NCCL_*, NVSHMEM_*, EP_*, DEEPINFER_*, FI_*, CUDA_*, …) and NCCL's config files."""

    variables: Fact[tuple[Setting, ...]] = NOT_READ
    nccl_conf: Fact[tuple[Setting, ...]] = NOT_READ
    """/etc/nccl.conf and ~/.nccl.conf; name NCCL_X, value; the file stands in `nccl_conf_files`."""
    nccl_conf_files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Lines of these files that NCCL does not understand."""


class GpuAttributes(Struct, frozen=True):
    """Attributes that only the CUDA driver knows, by CUDA ordinal."""

    ordinal: int
    uuid: Fact[str] = NOT_PROBED
    num_sms: Fact[int] = NOT_PROBED
    dma_buf: Fact[bool] = NOT_PROBED
    """CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED"""
    gdr_with_vmm: Fact[bool] = NOT_PROBED
    """CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED"""
    multicast: Fact[bool] = NOT_PROBED
    """CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED; only asked, never used."""
    fabric_handles: Fact[bool] = NOT_PROBED
    posix_handles: Fact[bool] = NOT_PROBED


class PeerAccess(Struct, frozen=True):
    """An ordered pair of CUDA ordinals: may `a` reach `b`, and did 1 MiB copied from b to a arrive unchanged?"""

    a: int
    b: int
    can_access: Fact[bool] = NOT_PROBED
    copied: Fact[bool] = NOT_PROBED


class VerbsProbe(Struct, frozen=True):
    """One RDMA device opened through libibverbs."""

    device: str
    opened: Fact[bool] = NOT_PROBED
    dmabuf_errno: Fact[int] = NOT_PROBED
    """errno of ibv_reg_dmabuf_mr with fd -1: EBADF (9) means supported, EOPNOTSUPP (95) or EPROTONOSUPPORT (93) not."""
    dmabuf_gpu_errno: Fact[int] = NOT_PROBED
    """errno of ibv_reg_dmabuf_mr with a descriptor of 2 MiB of GPU memory; 0: registered."""
    devx_uar_errno: Fact[int] = NOT_PROBED
    """errno of mlx5dv_devx_alloc_uar on an mlx5 device (what IBGDA's queues need); 0: allocated."""


GIN_OUTCOMES = ("ok", "hang", "lost", "wrong", "failed")
"""ok; hang: a call or kernel never ended; lost: the signal never came; wrong: it came, and the data was not as sent; failed: with an
error."""


class GinTrial(Struct, frozen=True):
    """Put, signal and wait of the canary's two ranks with one type of GIN."""

    name: str
    """proxy, gdaki or efa_gda"""
    value: str
    """One of GIN_OUTCOMES."""
    detail: str = ""
    """What was seen, in words."""
    where: str = ""
    """The stage that it ended in; '' when all went well."""
    round_ns: Fact[int] = NOT_PROBED
    """Put of 8 bytes with signal, forth and back."""
    emulated: bool = False
    """Over epctl's loopback plugin, without an adapter."""


class ActiveArea(Struct, frozen=True):
    """What child processes with a time limit found out by doing it. `--no-active` leaves all of it not_probed."""

    cu_init: Fact[int] = NOT_PROBED
    """Return code of cuInit(0): 0 fine, 100 no device, 802 system not ready, 803 driver mismatch, 804 compat not supported."""
    cu_driver_version: Fact[int] = NOT_PROBED
    devices: Fact[tuple[GpuAttributes, ...]] = NOT_PROBED
    peers: Fact[tuple[PeerAccess, ...]] = NOT_PROBED
    cumem_export: Fact[int] = NOT_PROBED
    """Return code of cuMemCreate + cuMemExportToShareableHandle (POSIX descriptor) of 2 MiB on device 0."""
    cumem_fabric: Fact[int] = NOT_PROBED
    """The same with a FABRIC handle; asked only where the device says it has them. 800: not permitted."""
    nvcc_compile: Fact[bool] = NOT_PROBED
    nvcc_compile_message: str = ""
    """First error line when the compile failed."""
    verbs: Fact[tuple[VerbsProbe, ...]] = NOT_PROBED
    pidfd_getfd: Fact[int] = NOT_PROBED
    """errno of pidfd_getfd between two sibling processes; 0: works."""
    deep_ep_import: Fact[str] = NOT_PROBED
    """'' when `import deep_ep` works, else the last line of its error."""
    gin: Fact[tuple[GinTrial, ...]] = NOT_PROBED
    """Each type of GIN that NCCL offers between two ranks of this node, tried out; () when it offers none."""
