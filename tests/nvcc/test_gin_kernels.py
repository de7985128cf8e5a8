"""The GIN kernels compile against NCCL's device headers for each type and architecture, without local memory beside
that of NCCL's header for EFA."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from msgspec import structs

from epctl.core.errors import EpctlError
from epctl.native import kernels, toolchain
from epctl.native.cache import Cache
from epctl.native.gin_family import GIN
from epctl.native.kernels import Wanted
from epctl.native.nccl import Nccl
from epctl.native.toolchain import MIN_NVCC, Toolchain

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]
ALL = kernels.wanted((GIN,), tuple(MIN_NVCC))


@pytest.fixture(scope="session")
def with_nccl(tools: Toolchain) -> Toolchain:
    """The toolchain with NCCL; skipped where there is none."""
    try:
        found: Nccl = toolchain.find_nccl(with_torch=False)
    except EpctlError as error:
        pytest.skip(f"{error.what}: {error.why}")
    return structs.replace(tools, nccl=found)


@pytest.mark.parametrize("one", ALL, ids=[one.name for one in ALL])
def test_every_variant_compiles(with_nccl: Toolchain, cache_folder: Path, one: Wanted) -> None:
    made = kernels.compile_one(one, with_nccl, Cache(cache_folder))
    assert {use.function for use in made.uses if use.registers} == set(GIN.kernels)
    assert (
        max(use.most_local_bytes for use in made.uses) == one.variant.local_bytes
    )  # no more is allowed than is needed


def test_a_source_without_a_type_says_so(with_nccl: Toolchain, tmp_path: Path) -> None:
    one = structs.replace(ALL[0], variant=structs.replace(ALL[0].variant, defines=()))
    done = subprocess.run(
        kernels.command(one, with_nccl, tmp_path / "x.cubin"), capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "EPCTL_GIN_TYPE is given by the variant" in done.stderr
