"""Tests that need the CUDA compiler."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epctl.core.errors import EpctlError
from epctl.native import toolchain
from epctl.native.toolchain import Toolchain


@pytest.fixture(scope="session")
def tools() -> Toolchain:
    """A toolchain for all architectures, with NCCL where it is installed; the test is skipped where there is none."""
    try:
        return toolchain.find(tuple(toolchain.MIN_NVCC), with_nccl=True)
    except EpctlError:
        pass
    try:
        return toolchain.find(tuple(toolchain.MIN_NVCC))
    except EpctlError as error:
        pytest.skip(f"{error.what}: {error.why}")


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all workers of pytest-xdist, so that nothing is compiled twice."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"
    folder.mkdir(exist_ok=True)
    return folder
