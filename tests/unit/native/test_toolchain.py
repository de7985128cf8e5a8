"""Finding compilers and NCCL among made-up ones, and what is refused before any GPU call."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from epctl.core.errors import EpctlError
from epctl.core.standalone import communication, loader
from epctl.native import compilers, nccl, toolchain
from epctl.native.compilers import Gxx, Nvcc
from epctl.native.nccl import Headers, Library, Nccl

NVCC = Nvcc("/cuda/bin/nvcc", "/cuda", "13.0.88", "CUDA_HOME", 15)
GXX = Gxx("/usr/bin/g++", "13.3.0", "PATH")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without compilers, NCCL, or a system that has any."""
    for name in ("CUDA_HOME", "CUDA_PATH", "NVCC_CCBIN", "CXX", nccl.ROOT, "CPATH", "LD_PRELOAD", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(compilers.cuda_home, "DEFAULT", str(tmp_path / "none"))
    monkeypatch.setattr(compilers.glob, "glob", lambda pattern: _below(tmp_path, pattern))
    monkeypatch.setattr(communication, "mapped", lambda _: [])
    communication._known.clear()


def _below(tmp_path: Path, pattern: str) -> list[str]:
    """glob, with nothing outside of the test's folder."""
    root = str(tmp_path)
    return sorted(map(str, tmp_path.glob(pattern[len(root) + 1 :]))) if pattern.startswith(root) else []


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def toolkit(folder: Path, version: str = "12.9.41", newest: int = 14) -> Path:
    program(
        folder / "bin" / "nvcc",
        f'if [ "$1" = --version ]; then echo "Cuda compilation tools, release {version.rpartition(".")[0]}, V{version}"; '
        f"else echo '#$ TOP={folder}/bin/..' >&2; fi",
    )
    (folder / "include" / "crt").mkdir(parents=True)
    (folder / "include" / "cuda_runtime.h").write_text("")
    (folder / "include" / "crt" / "host_config.h").write_text(
        f"#if defined(__GNUC__)\n#if __GNUC__ > {newest}\n#error\n"
    )
    return folder


def gxx(path: Path, version: str = "12.2.0", maker: str = "Free Software Foundation") -> Path:
    return program(path, f'case "$*" in *dump*) echo {version};; *) echo "g++ {version} {maker}, Inc.";; esac')


def copy_of_nccl(root: Path, version: str, headers: str = "") -> str:
    """A library that tells its version, with headers beside it; its path."""
    (root / "lib").mkdir(parents=True)
    (root / "lib" / nccl.SONAME).write_bytes(b"\0NCCL version " + version.encode() + b"+cuda13.0\0")
    if headers:
        (root / "include").mkdir()
        lines = zip(("MAJOR", "MINOR", "PATCH"), headers.split("."), strict=True)
        (root / "include" / "nccl.h").write_text("".join(f"#define NCCL_{name} {number}\n" for name, number in lines))
    return str((root / "lib" / nccl.SONAME).resolve())


def search(**environ: str) -> loader.Loader:
    found = loader.Loader(environ, [])
    found.defaults = []
    return found


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_nvcc_of_a_variable_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str) -> None:
    toolkit(tmp_path / "site" / "nvidia" / "cu13", "13.0.88")
    monkeypatch.setenv(variable, str(toolkit(tmp_path / "cuda")))
    found = compilers.find_nvcc()
    assert (found.version, found.origin, found.max_gxx, found.passed_over) == ("12.9.41", variable, 14, ())
    assert found.home == str(tmp_path / "cuda")


def test_places_without_a_compiler_are_passed_over_and_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "runtime-only"))
    program(tmp_path / "bin" / "nvcc", "exit 1")
    toolkit(tmp_path / "site" / "nvidia" / "cu13", "13.0.88")
    found = compilers.find_nvcc()
    assert (found.version, found.origin) == ("13.0.88", "pip packages")
    assert [text.partition(":")[0] for text in found.passed_over] == ["CUDA_HOME", "nvcc on PATH"]


def test_a_wrapper_of_nvcc_does_not_hide_the_toolkit(tmp_path: Path) -> None:
    home = toolkit(tmp_path / "cuda-12.9")
    program(tmp_path / "bin" / "nvcc", f'exec {home}/bin/nvcc "$@"')
    found = compilers.find_nvcc()
    assert (found.path, found.home, found.origin) == (f"{tmp_path}/bin/nvcc", str(home), "nvcc on PATH")


def test_a_compiler_without_cuda_headers_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = toolkit(tmp_path / "cuda")
    (home / "include" / "cuda_runtime.h").unlink()
    monkeypatch.setenv("CUDA_HOME", str(home))
    with pytest.raises(EpctlError, match="no CUDA compiler") as caught:
        compilers.find_nvcc()
    assert "no cuda_runtime.h" in caught.value.why
    assert caught.value.exit_code == 4


def test_no_compiler_at_all_tells_where_it_was_looked_for() -> None:
    with pytest.raises(EpctlError, match="no CUDA compiler") as caught:
        compilers.find_nvcc()
    assert "CUDA_HOME" in caught.value.why


def test_host_compiler_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gxx(tmp_path / "bin" / "g++")
    assert compilers.find_gxx().origin == "PATH"
    gxx(tmp_path / "bin" / "g++-13", "13.3.0")
    monkeypatch.setenv("CXX", "ccache g++-13 -m64")
    assert (compilers.find_gxx().origin, compilers.find_gxx().version) == ("CXX", "13.3.0")
    gxx(tmp_path / "gcc14" / "g++", "14.1.0")
    monkeypatch.setenv("NVCC_CCBIN", str(tmp_path / "gcc14"))
    assert (compilers.find_gxx().origin, compilers.find_gxx().version) == ("NVCC_CCBIN", "14.1.0")


def test_clang_is_no_gxx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gxx(tmp_path / "bin" / "clang++", "19.1.0", "LLVM")
    gxx(tmp_path / "bin" / "g++")
    monkeypatch.setenv("CXX", "clang++")
    found = compilers.find_gxx()
    assert found.origin == "PATH"
    assert "is not g++" in found.passed_over[0]


def test_no_host_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(EpctlError, match="no host compiler"):
        compilers.find_gxx()


@pytest.mark.parametrize(("text", "name"), [("90a", "90a"), ("sm_100a", "100a"), (" SM90a ", "90a")])
def test_architectures(text: str, name: str) -> None:
    assert toolchain.architecture(text) == name


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("80", "before Hopper"),
        ("sm_75", "before Hopper"),
        ("90", "architecture-specific"),
        ("103a", "not tested"),
        ("120a", "no NVLink"),
        ("", "knows"),
        ("x", "knows"),
    ],
)
def test_other_architectures_are_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(EpctlError, match="is not supported") as caught:
        toolchain.architecture(text)
    assert why in caught.value.why
    assert "90a or 100a" in caught.value.todo


def test_architecture_of_a_gpu() -> None:
    assert toolchain.architecture_of("9.0") == "90a"
    assert toolchain.architecture_of("10.0") == "100a"
    for capability in ("8.0", "10.3", "12.0"):
        with pytest.raises(EpctlError):
            toolchain.architecture_of(capability)


@pytest.mark.parametrize(
    ("version", "name", "fits"),
    [("11.8.89", "90a", False), ("12.0.76", "90a", True), ("12.6.20", "100a", False), ("12.8.61", "100a", True), ("13.0.88", "100a", True)],
)  # fmt: skip
def test_toolkit_and_architecture(version: str, name: str, fits: bool) -> None:
    nvcc = Nvcc("/cuda/bin/nvcc", "/cuda", version, "CUDA_HOME")
    if fits:
        toolchain.check_toolkit(nvcc, name)
        return
    with pytest.raises(EpctlError, match=f"CUDA {version} is too old for sm_{name}"):
        toolchain.check_toolkit(nvcc, name)


@pytest.mark.parametrize(
    ("version", "word"), [("8.5.0", "too old"), ("9.1.0", ""), ("15.2.0", ""), ("16.1.0", "too new")]
)
def test_gxx_and_nvcc(version: str, word: str) -> None:
    host = Gxx("/usr/bin/g++", version, "PATH")
    if not word:
        toolchain.check_host(NVCC, host)
        return
    with pytest.raises(EpctlError, match=word):
        toolchain.check_host(NVCC, host)


def test_nccl_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    system = copy_of_nccl(tmp_path / "sys", "2.20.5", "2.20.5")
    at = search(LD_LIBRARY_PATH=str(tmp_path / "sys" / "lib"))
    assert (nccl.find(at).library, nccl.find(at).headers.version) == (
        Library(system, "2.20.5", "LD_LIBRARY_PATH"),
        "2.20.5",
    )
    package = copy_of_nccl(tmp_path / "site" / "nvidia" / "nccl", "2.32.3", "2.32.3")
    assert nccl.find(at).library == Library(package, "2.32.3", "package")
    monkeypatch.setattr(communication, "mapped", lambda _: [system])
    assert nccl.find(at).library == Library(system, "2.20.5", "loaded")
    root = copy_of_nccl(tmp_path / "root", "2.33.0", "2.33.0")
    monkeypatch.setenv(nccl.ROOT, str(tmp_path / "root"))
    found = nccl.find(at)
    assert found.library == Library(root, "2.33.0", nccl.ROOT)
    assert found.headers == Headers(str(tmp_path / "root" / "include"), "2.33.0", nccl.ROOT)


def test_preloaded_and_system_libraries(tmp_path: Path) -> None:
    path = copy_of_nccl(tmp_path / "a", "2.32.3", "2.32.3")
    assert nccl.find(search(LD_PRELOAD=path)).library.origin == "LD_PRELOAD"
    system = search()
    system.defaults = [str(tmp_path / "a" / "lib")]
    assert nccl.find(system).library.origin == "system"


def test_no_nccl_and_no_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(EpctlError, match=r"there is no libnccl\.so\.2"):
        nccl.find(search())
    copy_of_nccl(tmp_path / "a", "2.32.3")
    monkeypatch.setattr(communication, "header_version", lambda *_: "")
    with pytest.raises(EpctlError, match="no NCCL headers"):
        nccl.find(search(LD_LIBRARY_PATH=str(tmp_path / "a" / "lib")))


def test_a_root_without_a_library_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy_of_nccl(tmp_path / "site" / "nvidia" / "nccl", "2.32.3", "2.32.3")
    monkeypatch.setenv(nccl.ROOT, str(tmp_path))
    with pytest.raises(EpctlError, match="has no NCCL"):
        nccl.find(search())


def made(library: str = "2.32.3", headers: str = "2.32.3", **more: object) -> Nccl:
    return Nccl(Library("/a/libnccl.so.2", library, "package"), Headers("/a/include", headers, "package"), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("library", "headers"), [("2.28.9", "2.32.3"), ("2.9.8", "2.10.0")])
def test_headers_newer_than_the_library(library: str, headers: str) -> None:
    with pytest.raises(EpctlError, match=f"headers \\({headers}\\) are newer than its library \\({library}\\)"):
        toolchain.check_headers(made(library, headers))


def test_headers_that_fit() -> None:
    toolchain.check_headers(made("2.32.3", "2.32.3"))
    toolchain.check_headers(made("2.32.3", "2.30.7"))


def test_a_library_that_does_not_tell_its_version_is_no_pass() -> None:
    with pytest.raises(EpctlError, match="cannot be read") as caught:
        toolchain.check_headers(made(""))
    assert caught.value.exit_code == 4


def test_two_libraries_in_one_process() -> None:
    mine, other = Library("/a/libnccl.so.2", "2.32.3", "loaded"), Library("/b/libnccl.so.2", "2.28.9", "loaded")
    toolchain.check_one_library(made(loaded=(mine,)), with_torch=True)
    with pytest.raises(EpctlError, match="two different libraries"):
        toolchain.check_one_library(made(loaded=(mine, other)), with_torch=False)


def test_a_preloaded_library_wins_over_pytorchs_own_copy() -> None:
    """PyTorch maps the NCCL of its packages by path, too; every symbol is bound to the preloaded one."""
    mine, other = Library("/a/libnccl.so.2", "2.32.3", "loaded"), Library("/b/libnccl.so.2", "2.28.9", "loaded")
    toolchain.check_one_library(made(loaded=(mine, other), preloaded=(mine.path,)), with_torch=True)
    with pytest.raises(EpctlError, match="two different libraries"):
        toolchain.check_one_library(made(loaded=(mine, other), preloaded=(other.path,)), with_torch=True)


def test_the_preloaded_library_is_found_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = copy_of_nccl(tmp_path / "a", "2.28.9", "2.28.9")
    second = copy_of_nccl(tmp_path / "b", "2.32.3", "2.32.3")
    monkeypatch.setattr(communication, "mapped", lambda _: [first, second])
    found = nccl.find(search(LD_PRELOAD=second))
    assert (found.library.path, found.library.version) == (second, "2.32.3")
    assert [one.path for one in found.loaded] == [second, first]


def test_another_nccl_of_pytorch() -> None:
    mine, other = Library("/a/libnccl.so.2", "2.32.3", "loaded"), Library("/b/libnccl.so.2", "2.28.9", "torch")
    toolchain.check_one_library(made(torch=other), with_torch=False)
    toolchain.check_one_library(made(torch=other, loaded=(mine,)), with_torch=True)
    with pytest.raises(EpctlError, match="PyTorch would load another NCCL") as caught:
        toolchain.check_one_library(made(torch=other), with_torch=True)
    assert "LD_PRELOAD=/a/libnccl.so.2" in caught.value.todo
    with pytest.raises(EpctlError, match="of its own"):
        toolchain.check_one_library(made(torch=other, in_torch=True, loaded=(mine,)), with_torch=True)


def test_what_pytorch_loads_is_read_from_its_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # another test's would be found first
    torch = tmp_path / "site" / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "__init__.py").write_text("raise RuntimeError('imported')")
    (torch / "lib" / "libtorch_cuda.so").write_bytes(b"x")
    path = copy_of_nccl(tmp_path / "a", "2.28.9", "2.28.9")
    monkeypatch.setattr(loader, "load", lambda _: loader.elf.Elf(needed=("libc.so.6", nccl.SONAME)))
    monkeypatch.setattr(loader, "has_runpath", lambda _: True)
    found = nccl.find(search(LD_LIBRARY_PATH=str(tmp_path / "a" / "lib")))
    assert (found.torch, found.in_torch, found.library.origin) == (Library(path, "2.28.9", "torch"), False, "torch")
    monkeypatch.setattr(loader, "load", lambda _: loader.elf.Elf(needed=("libc.so.6",)))
    (torch / "lib" / "libtorch_cuda.so").write_bytes(b"NCCL version 2.27.3\0")
    linked = nccl.find(search(LD_LIBRARY_PATH=str(tmp_path / "a" / "lib")))
    assert (linked.in_torch, linked.library.origin) == (True, "LD_LIBRARY_PATH")
    assert linked.torch is not None
    assert linked.torch.version == "2.27.3"
