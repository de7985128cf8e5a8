"""The host extension builds and imports without a GPU, and calls the driver as it should: a made-up driver looks on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from epctl.core.errors import EpctlError
from epctl.native import host_extension
from epctl.native.cache import Cache

pytest.importorskip("pybind11", reason="pybind11 is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")]
ROOT = Path(__file__).parents[3]
DRIVER = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
static int depth = 0;
static int fails(const char* name) { const char* bad = std::getenv("BAD"); return bad && !std::strcmp(bad, name) ? 209 : 0; }
extern "C" {
int cuInit(unsigned) { return fails("cuInit"); }
int cuDriverGetVersion(int* v) { *v = 13000; return 0; }
int cuGetErrorName(int c, const char** n) { *n = "CUDA_ERROR_NO_BINARY_FOR_GPU"; return c == 209 ? 0 : 1; }
int cuGetErrorString(int c, const char** t) { *t = "no kernel image"; return c == 209 ? 0 : 1; }
int cuDeviceGetCount(int* n) { *n = 2; return 0; }
int cuDeviceGet(int* d, int i) { *d = i; return i < 2 ? 0 : 101; }
int cuDevicePrimaryCtxRetain(void** c, int d) { *c = (void*)(long)(100 + d); std::printf("retain %d\n", d); return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { std::printf("release %d\n", d); std::fflush(stdout); return 0; }
int cuCtxPushCurrent_v2(void*) { ++depth; return 0; }
int cuCtxPopCurrent_v2(void** c) { *c = nullptr; --depth; return 0; }
int cuModuleLoadData(void** m, const void* p) {
    std::printf("load %s\n", (const char*)p);
    *m = (void*)7;
    return fails("cuModuleLoadData");
}
int cuModuleUnload(void*) { std::printf("unload %d\n", depth); return 0; }
int cuModuleGetFunction(void** f, void*, const char* n) {
    *f = (void*)8;
    std::printf("function %s\n", n);
    return fails("cuModuleGetFunction");
}
int cuFuncGetAttribute(int* v, int a, void*) { *v = a + 1; return 0; }
int cuFuncSetAttribute(void*, int a, int v) { std::printf("set %d %d\n", a, v); return fails("cuFuncSetAttribute"); }
typedef unsigned U;
int cuLaunchKernel(void* f, U gx, U gy, U gz, U bx, U by, U bz, U s, void* q, void** p, void** e) {
    std::printf("launch %ld grid %u %u %u block %u %u %u shared %u stream %ld arguments %s extra %d depth %d\n", (long)f, gx, gy, gz, bx,
                by, bz, s, (long)q, (const char*)p[0], e != nullptr, depth);
    return fails("cuLaunchKernel");
}
}
"""
CHILD = """
import sys
from pathlib import Path
from epctl.native import host_extension
from epctl.native.cache import Cache
host = host_extension.load(Cache(Path(sys.argv[1])))
try:
    print(host.driver_version(), host.device_count(), flush=True)
    cubin = host.Cubin(b"image", int(sys.argv[2]))
    kernel = host.Kernel(cubin, "k", 1024)
    del cubin
    kernel.launch(132, 512, 77, b"bytes")
    print(kernel.attribute(3), flush=True)
    del kernel
except host.DriverError as error:
    print(f"{error}|{error.call}|{error.code}|{error.name}")
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the extension is: it is built once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    argv = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(folder / "libcuda.so.1")]
    subprocess.run(argv, input=DRIVER.encode(), check=True)
    return folder


def child(cache: Path, device_idx: int, libraries: str, bad: str = "") -> list[str]:
    environ = {**os.environ, "LD_LIBRARY_PATH": libraries, "BAD": bad}
    argv = [sys.executable, "-W", "error", "-c", CHILD, str(cache), str(device_idx)]
    done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_it_builds_once_and_imports_without_a_driver(cache: Path, tmp_path: Path) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("there is a driver here")
    (told,) = child(cache, 0, str(tmp_path))
    assert told.startswith("dlopen: libcuda.so.1")
    assert told.endswith("|dlopen|-1|")
    assert not host_extension.build(Cache(cache)).built


def test_calls(cache: Path, driver: Path) -> None:
    assert child(cache, 1, str(driver)) == [
        "13000 2",
        "retain 1",
        "load image",
        "function k",
        "set 8 1024",
        "launch 8 grid 132 1 1 block 512 1 1 shared 1024 stream 77 arguments bytes extra 0 depth 1",
        "4",
        "unload 1",
        "release 1",
    ]


@pytest.mark.parametrize(
    "call", ["cuInit", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute", "cuLaunchKernel"]
)
def test_errors_name_the_call_and_the_code(cache: Path, driver: Path, call: str) -> None:
    told = child(cache, 0, str(driver), call)
    text = f"{call}: 209 CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image|{call}|209|CUDA_ERROR_NO_BINARY_FOR_GPU"
    assert text in told
    assert told.count("retain 0") == told.count("release 0") == (call != "cuInit")


def test_a_code_that_the_driver_cannot_name(cache: Path, driver: Path) -> None:
    assert child(cache, 2, str(driver))[-1].startswith("cuDeviceGet: 101 unknown error: the driver does not know it|")


def test_a_driver_that_is_too_old(cache: Path, tmp_path: Path) -> None:
    argv = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(argv, input=b'extern "C" int cuInit(unsigned) { return 0; }', check=True)
    assert child(cache, 0, str(tmp_path))[-1] == (
        "cuDriverGetVersion: libcuda.so.1 does not have it: the driver is too old|cuDriverGetVersion|-1|"
    )


def test_without_pybind11(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pybind11", None)
    with pytest.raises(EpctlError, match="pybind11 is not installed") as caught:
        host_extension.build(Cache(tmp_path))
    assert caught.value.exit_code == 4


def test_what_another_node_built_is_used_where_there_is_no_compiler(
    cache: Path, driver: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built = host_extension.build(Cache(cache))
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("NVCC_CCBIN", "CXX"):
        monkeypatch.delenv(name, raising=False)
    assert host_extension.obtain(Cache(cache)).folder == built.folder
    with pytest.raises(EpctlError, match="no host compiler"):
        host_extension.obtain(Cache(tmp_path))


def test_without_headers_of_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host_extension.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(EpctlError, match="Python's headers are not installed"):
        host_extension.requirements()


def test_a_file_that_is_no_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host_extension, "run", lambda argv, *_: Path(argv[argv.index("-o") + 1]).write_bytes(b"x"))
    with pytest.raises(EpctlError, match="cannot be imported"):
        host_extension.load(Cache(tmp_path))
