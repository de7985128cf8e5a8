"""Every kernel variant compiles for both architectures, without spills; and what would spill is refused."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from epctl.core.errors import EpctlError
from epctl.native import compilers, kernels
from epctl.native.cache import Cache
from epctl.native.families import FAMILIES, Family, Variant
from epctl.native.kernels import Wanted
from epctl.native.toolchain import MIN_NVCC, Toolchain

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]
ALL = kernels.wanted(tuple(FAMILIES.values()), tuple(MIN_NVCC))


@pytest.mark.parametrize("one", ALL, ids=[one.name for one in ALL])
def test_every_variant_compiles(tools: Toolchain, cache_folder: Path, one: Wanted) -> None:
    if one.family.with_nccl and tools.nccl is None:
        pytest.skip("it needs NCCL's headers and library")
    made = kernels.compile_one(one, tools, Cache(cache_folder))
    assert made.notice == ""
    assert made.cubin.read_bytes()[:4] == b"\x7fELF"
    assert {use.function for use in made.uses if use.registers} == set(one.family.kernels)
    assert {use.architecture for use in made.uses} == {one.architecture}
    kept = [use.in_local_memory() for use in made.uses if use.in_local_memory()]
    assert (kept == []) == (one.variant.local_bytes == 0)
    again = kernels.compile_one(one, tools, Cache(cache_folder))
    assert (again.built, again.cubin, again.uses) == (False, made.cubin, made.uses)


@pytest.mark.parametrize("architecture", MIN_NVCC)
def test_machine_code_has_the_instructions_that_it_is_about(
    tools: Toolchain, cache_folder: Path, architecture: str
) -> None:
    disassembler = shutil.which("nvdisasm") or shutil.which("cuobjdump")
    if disassembler is None:
        pytest.skip("neither nvdisasm nor cuobjdump is on PATH")
    one = next(one for one in ALL if one.architecture == architecture)
    cubin = kernels.compile_one(one, tools, Cache(cache_folder)).cubin
    option = "-c" if disassembler.endswith("nvdisasm") else "-sass"
    told = subprocess.run([disassembler, option, str(cubin)], capture_output=True, text=True, check=True).stdout
    for wanted in (
        r"\bUBLKCP\.S\.G\b",
        r"\bUBLKCP\.G\.S\b",
        r"\bLDG\.E\S*\.128\b",
        r"\bSTG\.E\S*\.128\b",
        r"\.STRONG\.SYS\b",
    ):
        assert re.search(wanted, told), wanted
    assert not re.search(r"\b(?:LDL|STL)\b", told)


BAD = {
    "stack": """extern "C" __global__ void bad(int *p) {
        int a[64] = {};
        for (int i = 0; i < 64; ++i) a[p[i] & 63] += i;
        for (int i = 0; i < 64; ++i) p[i] = a[i];
    }""",
    "spill": """extern "C" __global__ void __launch_bounds__(1024, 2) bad(float *p) {
        float v[128];
        #pragma unroll
        for (int i = 0; i < 128; ++i) v[i] = p[i * 1024 + threadIdx.x];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 128; ++i) p[i * 1024 + threadIdx.x] = v[i] * v[127 - i] + v[(i * 7) & 127];
    }""",
}  # fmt: skip


def made_up(monkeypatch: pytest.MonkeyPatch, root: Path, text: str) -> Wanted:
    (root / "bad.cu").write_text(text)
    monkeypatch.setattr(kernels, "ROOT", root)
    return Wanted(Family("bad", "bad.cu", ("bad",), ()), Variant("x", (("EPCTL_X", 1),)), "90a")


@pytest.mark.parametrize("kind", BAD)
def test_local_memory_is_noticed(tools: Toolchain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    one = made_up(monkeypatch, tmp_path, BAD[kind])
    with pytest.raises(EpctlError, match="bad-x-90a keeps variables in local memory") as caught:
        kernels.compile_one(one, tools, Cache(tmp_path / "cache"))
    assert caught.value.why.startswith("bad: ")
    assert kind in caught.value.why
    assert Cache(tmp_path / "cache").entries() == []


def test_errors_and_warnings_of_the_compiler_are_shown(
    tools: Toolchain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = made_up(monkeypatch, tmp_path, 'extern "C" __global__ void bad(int *p) { int unused; p[0] = EPCTL_X }')
    with pytest.raises(EpctlError, match="bad-x-90a does not compile") as caught:
        kernels.compile_one(one, tools, Cache(tmp_path / "cache"))
    assert "bad.cu(1): error" in caught.value.why
    one = made_up(monkeypatch, tmp_path, 'extern "C" __global__ void bad(int *p) { int unused; p[0] = EPCTL_X; }')
    with pytest.raises(EpctlError, match="bad-x-90a does not compile") as caught:
        kernels.compile_one(one, tools, Cache(tmp_path / "cache"))
    assert "unused" in caught.value.why


def test_options_of_the_environment_do_not_count(
    tools: Toolchain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = made_up(monkeypatch, tmp_path, 'extern "C" __global__ void bad(int *p) { p[0] = EPCTL_X; }')
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "--no-such-option")
    assert kernels.compile_one(one, tools, Cache(tmp_path / "cache")).built
    assert list((tmp_path / "cache" / "v1" / ".tmp").iterdir()) == []


def test_a_node_without_a_compiler_takes_what_another_one_compiled(
    tools: Toolchain, cache_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = kernels.compile_one(ALL[0], tools, Cache(cache_folder))
    assert kernels.obtain(ALL[0], Cache(cache_folder)).cubin == made.cubin
    monkeypatch.setattr(compilers, "_toolkits", lambda: iter(()))
    found = kernels.obtain(ALL[0], Cache(cache_folder))
    assert (found.cubin, found.built) == (made.cubin, False)
    monkeypatch.setattr(kernels, "FLAGS", (*kernels.FLAGS, "-G"))
    for folder in (cache_folder, tmp_path):
        with pytest.raises(EpctlError, match="no CUDA compiler"):
            kernels.obtain(ALL[0], Cache(folder))
