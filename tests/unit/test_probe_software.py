"""Software: documents become facts, and the collectors read files without running anything of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctl.core.snapshot.software import DeepEp, Distribution, JitCache, NetPlugin, Root, SharedLibrary, SoftwareArea
from epctl.probes.collectors import _communication, _cuda_home, _deepep, _jit, _loader
from epctl.probes.documents import flag
from epctl.probes.software import software
from epctl.probes.source import COLLECTORS
from tests.support.damage import damaged_source
from tests.support.elf_file import ElfFile
from tests.support.fake_source import FakeSource
from tests.support.probing import odd_document, reason, survives

SITE = "/opt/venv/lib/python3.12/site-packages"
LIB = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
NONE = {"error": "not_found", "detail": "nothing"}
PYTHON: dict[str, Any] = {
    "python": "3.12.3",
    "executable": "/opt/venv/bin/python",
    "glibc": "2.39",
    "distributions": [{"name": "torch", "version": "2.11.0"}, {"name": "nvidia-nccl-cu13", "version": "2.28.9"}],
    "torch": {"version": "2.11.0+cu130", "cuda": "13.0", "nccl_pin": "2.28.9", "folder": f"{SITE}/torch"},
    "nccl": [
        {"origin": "package", "path": LIB, "real_path": LIB, "version": "2.28.9", "sha256": "ab"},
        {"origin": "loader", "path": "/lib/libnccl.so.2", "real_path": "/lib/libnccl.so.2.28.3", "version": NONE, "first": True},
        {"origin": "elsewhere", "path": "/x", "real_path": "/x"},
    ],
    "nccl_effective": {"path": LIB, "version": "2.28.9", "headers": "2.28.9"},
    "nvshmem": [],
    "net_plugins": [
        {"name": "libnccl-net-ofi.so", "path": "/o.so", "version": "1.22.0", "missing": ["libfabric.so.1"], "glibc_needed": "2.34"}
    ],
    "roots": [{"variable": "NCCL_DIR", "path": "/n", "has_include": True, "has_lib": False, "has_device_headers": False}],
    "deep_ep": [
        {
            "distribution": "deepinfer-ep",
            "version": "2.5.0",
            "path": f"{SITE}/deep_ep",
            "nccl_built": "2.32.3",
            "torch_built": NONE,
            "undefined_nccl_symbols": ["ncclDevCommCreate"],
            "needed_missing": [],
        }
    ],
    "jit_caches": [
        {"owner": "deepep", "path": "/home/u/.deep_ep", "exists": True, "filesystem": "nfs4", "writable": True, "entries": 3}
    ],
}  # fmt: skip
TOOLCHAIN: dict[str, Any] = {
    "cuda_home": "/usr/local/cuda-13.1",
    "cuda_home_origin": "CUDA_HOME",
    "nvcc": "/usr/local/cuda-13.1/bin/nvcc",
    "nvcc_version": "13.1.80",
    "gxx": "/usr/bin/g++",
    "gxx_version": "13.3.0",
    "nvcc_ccbin": NONE,
    "cxx_format": True,
    "libdwfl_header": False,
    "libdw": True,
    "has_cuda_runtime_h": True,
    "has_cccl": True,
    "usr_local_cuda": {"error": "not_found", "detail": "no /usr/local/cuda"},
    "cpath_cuda_versions": ["12.8"],
}


def test_documents_become_facts() -> None:
    area = software(FakeSource(documents={"python": PYTHON, "toolchain": TOOLCHAIN}))
    assert (area.python_version, area.glibc_version) == ("3.12.3", "2.39")
    assert area.distributions == (Distribution("torch", "2.11.0"), Distribution("nvidia-nccl-cu13", "2.28.9"))
    assert (area.torch_version, area.torch_cuda, area.torch_nccl_pin) == ("2.11.0+cu130", "13.0", "2.28.9")
    assert isinstance(area.nccl, tuple)
    assert area.nccl[0] == SharedLibrary("package", LIB, LIB, "2.28.9", "ab")
    assert area.nccl[1].first
    assert len(area.nccl) == 2
    assert (area.nccl_effective, area.nccl_effective_path, area.nccl_headers) == ("2.28.9", LIB, "2.28.9")
    assert area.net_plugins == (NetPlugin("libnccl-net-ofi.so", "/o.so", "1.22.0", ("libfabric.so.1",), "2.34"),)
    assert area.roots == (Root("NCCL_DIR", "/n", True, False, False),)
    assert isinstance(area.deep_ep, tuple)
    assert isinstance(area.deep_ep[0], DeepEp)
    assert area.deep_ep[0].undefined_nccl_symbols == ("ncclDevCommCreate",)
    assert reason(area.deep_ep[0].torch_built) == "not_found"
    assert area.jit_caches == (JitCache("deepep", "/home/u/.deep_ep", True, "nfs4", True, 3),)
    assert area.toolchain.nvcc_version == "13.1.80"
    assert reason(area.toolchain.usr_local_cuda) == "not_found"
    assert area.toolchain.cpath_cuda_versions == ("12.8",)
    assert area.notes == (f"nccl: the loader finds /lib/libnccl.so.2.28.3, PyTorch takes {LIB}",)


def test_without_collectors_everything_is_absent() -> None:
    area = software(FakeSource())
    assert reason(area.distributions) == "tool_missing"
    assert reason(area.torch_version) == "tool_missing"
    assert reason(area.toolchain.nvcc) == "tool_missing"
    assert area.roots == ()


@given(st.data())
def test_any_damage_gives_an_area(data: st.DataObject) -> None:
    documents = {"python": odd_document(PYTHON, data), "toolchain": odd_document(TOOLCHAIN, data)}
    survives(software=software(damaged_source(FakeSource(documents=documents), data)))


def library(path: Path, told: str) -> Path:
    """A file that tells its version as a library does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\0NCCL version information\0" + told.encode() + b"\0" + b"\xff" * 64)
    return path


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Site-packages with PyTorch, two copies of NCCL, and a deep_ep without a compiled module."""
    folder = tmp_path / "site"
    library(folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2", "NCCL version 2.28.9+cuda13.0")
    include = folder / "nvidia" / "nccl" / "include"
    include.mkdir()
    (include / "nccl.h").write_text("#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n")
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise RuntimeError('must not be imported')\n")
    (folder / "torch" / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    )
    for name, version, more in (
        ("torch", "2.11.0", "Requires-Dist: nvidia-nccl-cu13==2.28.9; platform_system == 'Linux'\n"),
        ("nvidia_nccl_cu13", "2.28.9", ""),
        ("deep_ep", "2.1.0+torch2.11.0", ""),
        ("unrelated", "1.0", ""),
    ):
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}")
    (folder / "broken-1.dist-info").mkdir()
    (folder / "deep_ep").mkdir()
    (folder / "deep_ep" / "__init__.py").write_text("raise RuntimeError('must not be imported')\n")
    (folder / "deep_ep" / "envs.py").write_text(f"persistent_envs['EP_JIT_CACHE_DIR'] = '{tmp_path}/jit'\n")
    return folder


def collect(site: Path, **env: str) -> SoftwareArea:
    """The software area as the collector sees it with `site` on the path."""
    told = {"PATH": os.environ["PATH"], "HOME": str(site.parent), "PYTHONPATH": str(site), **env}
    script = str(COLLECTORS / "python.py")
    done = subprocess.run([sys.executable, script], env=told, capture_output=True, check=True, cwd="/")
    return software(FakeSource(documents={"python": json.loads(done.stdout)}))


def test_collector_reads_an_installation_without_importing_it(site: Path) -> None:
    area = collect(site)
    assert (area.torch_version, area.torch_cuda, area.torch_nccl_pin) == ("2.11.0+cu130", "13.0", "2.28.9")
    assert isinstance(area.distributions, tuple)
    names = {entry.name: entry.version for entry in area.distributions}
    assert names["nvidia-nccl-cu13"] == "2.28.9"
    assert "unrelated" not in names
    assert (area.nccl_effective, area.nccl_headers) == ("2.28.9", "2.28.9")
    assert isinstance(area.deep_ep, tuple)
    assert (area.deep_ep[0].distribution, area.deep_ep[0].torch_built) == ("deep-ep", "2.11.0")
    assert reason(area.deep_ep[0].needed_missing) == "not_found"
    assert isinstance(area.jit_caches, tuple)
    caches = {cache.owner: cache for cache in area.jit_caches}
    assert caches["deepep"].path == f"{site.parent}/jit"
    assert caches["deepgemm"].path == f"{site.parent}/.deep_gemm"
    assert caches["deepep"].exists is False


GIN_H = """template <typename Coop = ncclCoopThread>
  NCCL_DEVICE_INLINE void get(ncclTeam, int peer, ncclWindow_t remoteWnd, size_t remoteOffset);
"""
FLAGS_H = "enum ncclGinOptFlags {\n  ncclGinOptFlagsDefault = 0,\n  ncclGinOptFlagsAggregateRequests = (1 << 1),\n"
"""As in the wheel of 2.32.3: Get, and no flag for a whole warp."""


def device_headers(site: Path, gin: str = GIN_H, flags: str = FLAGS_H) -> None:
    folder = site / "nvidia" / "nccl" / "include" / "nccl_device"
    (folder / "gin").mkdir(parents=True, exist_ok=True)
    (folder / "gin.h").write_text(gin)
    (folder / "gin" / "gin_device_common.h").write_text(flags)


def test_collector_reads_what_the_device_headers_declare(site: Path) -> None:
    assert reason(collect(site).nccl_gin_get) == "not_found"
    device_headers(site)
    area = collect(site)
    assert (area.nccl_gin_get, area.nccl_gin_warp_get) == (True, False)
    device_headers(site, flags=FLAGS_H + "  ncclGinOptFlagsWarpGet = (1 << 2),\n};\n")
    assert collect(site).nccl_gin_warp_get is True
    device_headers(site, gin="NCCL_DEVICE_INLINE void put(ncclTeam, int peer);\n")
    assert collect(site).nccl_gin_get is False


def test_collector_tells_an_nccl_with_genk_by_the_name_of_its_setting(tmp_path: Path) -> None:
    path = tmp_path / "libnccl.so.2"
    for texts, known in ((b"NCCL_SYM_GIN_KERNELS_ENABLE\0", False), (b"NCCL_SYM_GENK_ENABLE\0", True)):
        path.write_bytes(ElfFile().build("libnccl.so.2") + b"\0" + texts)
        assert _communication._knows_genk(str(path)) is known
    path.write_bytes(b"no library")
    assert reason(flag({"genk": _communication._knows_genk(str(path))}, "genk")) == "unparsable"


def test_collector_tells_the_release_of_deepep_whatever_its_distribution_is_called(site: Path, tmp_path: Path) -> None:
    def first(area: SoftwareArea) -> DeepEp:
        assert isinstance(area.deep_ep, tuple)
        return area.deep_ep[0]

    assert reason(first(collect(site)).release) == "not_found"
    (site / "deep_ep" / "buffer.py").touch()
    assert first(collect(site)).release == "1"
    (site / "deep_ep" / "__init__.py").write_text("raise RuntimeError\n__version__ = '2.1.0'\n")
    kernels = site / "deep_ep" / "include" / "deep_ep" / "impls" / "engram"
    kernels.mkdir(parents=True)
    (kernels / "engram_fetch.cuh").write_text("const auto options = ncclGinOptFlagsAggregateRequests;\n")
    assert (first(collect(site)).release, first(collect(site)).warp_get) == ("2.1.0", False)
    (kernels / "engram_fetch.cuh").write_text("options | ncclGinOptFlagsWarpGet\n")
    assert first(collect(site)).warp_get is True
    (site / "deep_ep_v25").mkdir()
    (site / "deep_ep_v25" / "__init__.py").write_text("__version__ = '2.5.0'\n")
    info = site / "sgl_deep_ep_v25-0.1.0rc0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sgl-deep-ep-v25\nVersion: 0.1.0rc0\n")
    builds = collect(site).deep_ep
    assert isinstance(builds, tuple)
    assert [(one.distribution, one.release) for one in builds] == [("deep-ep", "2.1.0"), ("sgl-deep-ep-v25", "2.5.0")]


def test_a_deep_ep_on_the_path_without_metadata_is_seen(site: Path) -> None:
    shutil.rmtree(site / "deep_ep-2.1.0+torch2.11.0.dist-info")
    (site / "deep_ep" / "__init__.py").write_text("__version__: str = '2.5.0'\n")
    builds = collect(site).deep_ep
    assert isinstance(builds, tuple)
    assert [(one.distribution, one.version, one.release) for one in builds] == [("deep-ep", "2.5.0", "2.5.0")]


@pytest.mark.skipif(
    find_spec("nvidia.nccl") is not None if find_spec("nvidia") else False, reason="NCCL is installed here, too"
)
def test_collector_tells_copies_apart(site: Path, tmp_path: Path) -> None:
    mine = library(tmp_path / "mine" / "lib" / "libnccl.so.2", "NCCL version 2.32.3+cuda13.4")
    twin = tmp_path / "root" / "lib" / "libnccl.so.2"
    twin.parent.mkdir(parents=True)
    shutil.copy(site / "nvidia" / "nccl" / "lib" / "libnccl.so.2", twin)
    area = collect(site, LD_LIBRARY_PATH=str(mine.parent), NCCL_DIR=str(tmp_path / "root"))
    assert isinstance(area.nccl, tuple)
    by_origin = {entry.origin: entry for entry in area.nccl}
    assert by_origin["loader"].version == "2.32.3" or any(
        entry.version == "2.32.3" and entry.first for entry in area.nccl
    )
    assert by_origin["package"].sha256 == by_origin["root"].sha256
    assert isinstance(by_origin["root"].sha256, str)
    assert area.nccl_effective == "2.32.3"
    assert area.roots == (Root("NCCL_DIR", str(tmp_path / "root"), False, True, False),)


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed here, too")
def test_cpu_build_of_torch_and_no_torch(site: Path) -> None:
    (site / "torch" / "version.py").write_text("__version__ = '2.11.0+cpu'\ncuda = None\n")
    assert reason(collect(site).torch_cuda) == "unsupported"
    shutil.rmtree(site / "torch")
    assert reason(collect(site).torch_version) == "not_found"


def test_version_of_nvshmem_and_of_a_file_that_does_not_tell(tmp_path: Path) -> None:
    path = tmp_path / "libnvshmem_host.so.3"
    path.write_bytes(b"NVSHMEM version in CUmodule\0NVSHMEM v3.4.5\0")
    assert _communication.version(_communication.NVSHMEM, str(path)) == "3.4.5"
    mute = tmp_path / "libnccl.so.2"
    mute.write_bytes(b"")
    assert _communication.version(_communication.NCCL, str(mute))["error"] == "unparsable"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_symbols_that_the_nccl_in_use_lacks(tmp_path: Path) -> None:
    def build(name: str, source: str, *flags: str) -> str:
        target = tmp_path / name
        argv = ["g++", "-shared", "-fPIC", "-O2", "-x", "c++", "-", "-o", str(target), *flags]
        subprocess.run(argv, input=source.encode(), check=True)
        return str(target)

    nccl = build("libnccl.so.2", 'extern "C" int ncclSend() { return 1; }', "-Wl,-soname,libnccl.so.2")
    code = """
    struct Config { unsigned long size; unsigned magic, version; int rest[4]; };
    extern "C" int ncclSend(); extern "C" int ncclDevCommCreate(Config *);
    int use() { Config c = {sizeof(Config), 0xcafebeef, 23203, {1, 2, 3, 4}}; return ncclSend() + ncclDevCommCreate(&c); }
    """
    extension = build("_C.so", code, "-L", str(tmp_path), "-l:libnccl.so.2", "-Wl,--unresolved-symbols=ignore-all")
    loader = _loader.Loader({}, [])
    found = _deepep.describe(loader, "deepinfer-ep", "2.5.0", str(tmp_path), [extension], nccl, [])
    assert found["undefined_nccl_symbols"] == ["ncclDevCommCreate"]
    assert found["needed_missing"] == ["libnccl.so.2"]
    assert found["nccl_built"] == "2.32.3"
    beside = _deepep.describe(loader, "deepinfer-ep", "2.5.0", str(tmp_path), [extension], nccl, [str(tmp_path)])
    assert beside["needed_missing"] == []


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.parametrize(("flag", "wins"), [("--disable-new-dtags", "inside"), ("--enable-new-dtags", "outside")])
def test_an_old_run_path_comes_before_ld_library_path(tmp_path: Path, flag: str, wins: str) -> None:
    for folder in ("inside", "outside"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "libnccl.so.2").write_bytes(b"")
    target = str(tmp_path / "libtorch_cuda.so")
    argv = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", target, f"-Wl,{flag}", "-Wl,-rpath,$ORIGIN/inside"]
    subprocess.run(argv, input=b"int x;", check=True)
    loader = _loader.Loader({"LD_LIBRARY_PATH": str(tmp_path / "outside")}, [])
    found = _loader.resolve(loader, target, "libnccl.so.2", _loader.load(target))
    assert found == str(tmp_path / wins / "libnccl.so.2")


def test_filesystem_is_that_of_the_longest_mount() -> None:
    mounts = [("/", "ext4"), ("/home", "autofs"), ("/home", "nfs4"), ("/home/u/fast", "xfs"), ("/homestead", "tmpfs")]
    assert _jit.filesystem("/home/u/.deep_ep", mounts) == "nfs4"
    assert _jit.filesystem("/home/u/fast/x", mounts) == "xfs"
    assert _jit.filesystem("/tmp", mounts) == "ext4"
    assert _jit.filesystem("/tmp", [])["error"] == "not_found"


def test_cuda_version_of_an_include_folder(tmp_path: Path) -> None:
    include = tmp_path / "toolkit" / "include"
    (include / "cccl").mkdir(parents=True)
    (include / "cuda.h").write_text("#define CUDA_VERSION 12080\n")
    assert _cuda_home.version_of(str(include / "cccl")) == "12.8"
    assert _cuda_home.version_of("/opt/cuda-12.4/include") == "12.4"
    assert _cuda_home.version_of(str(tmp_path)) == ""


def toolchain(**env: str) -> Any:  # noqa: ANN401 - a Toolchain
    script = str(COLLECTORS / "toolchain.py")
    told = {"PATH": os.environ["PATH"], **env}
    done = subprocess.run([sys.executable, script], env=told, capture_output=True, check=True, cwd="/")
    return software(FakeSource(documents={"toolchain": json.loads(done.stdout)})).toolchain


def test_toolchain_of_a_made_up_machine(tmp_path: Path) -> None:
    home = tmp_path / "cuda-13.1"
    (home / "bin").mkdir(parents=True)
    (home / "include" / "cccl").mkdir(parents=True)
    nvcc = home / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.1, V13.1.80'\n")
    nvcc.chmod(0o755)
    gxx = tmp_path / "g++"
    gxx.write_text('#!/bin/sh\ncase "$*" in *dump*) echo 13.3.0;; *) exit 0;; esac\n')
    gxx.chmod(0o755)
    found = toolchain(
        CUDA_HOME=str(home), PATH=f"{tmp_path}:/usr/bin:/bin", CPATH=str(home / "include"), NVCC_CCBIN="/nowhere"
    )
    assert (found.cuda_home, found.cuda_home_origin) == (str(home), "CUDA_HOME")
    assert (found.nvcc, found.nvcc_version) == (str(nvcc), "13.1.80")
    assert (found.gxx, found.gxx_version) == (str(gxx), "13.3.0")
    assert "NVCC_CCBIN=/nowhere" in found.nvcc_ccbin.detail
    assert (found.cxx_format, found.libdwfl_header, found.has_cccl, found.has_cuda_runtime_h) == (
        True,
        True,
        True,
        False,
    )
    assert found.cpath_cuda_versions == ("13.1",)


def test_toolchain_of_a_slim_image(tmp_path: Path) -> None:
    found = toolchain(CUDA_HOME=str(tmp_path / "none"), PATH=str(tmp_path))
    assert reason(found.nvcc) == "not_found"
    assert str(tmp_path / "none") in found.nvcc.detail
    assert reason(found.gxx) == "not_found"
    assert reason(found.cxx_format) == "not_found"
