"""Commands that are made from a node's facts: they fit its distribution, its PyTorch and the options in force there."""

from __future__ import annotations

import pytest

import epctl.checks  # noqa: F401 - registers them
from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Setting
from epctl.core.views import installing, regkeys, toolkit
from tests.support.cases import run
from tests.support.nodes import dist, edit, ib_node

IB = ib_node()


def commands(id: str, node: Snapshot, profiles: tuple[str, ...]) -> tuple[str, ...]:  # noqa: A002
    finding = run(id, node, profiles)
    assert finding.status == "failed", finding
    return finding.commands


def _dwords(text: str) -> Snapshot:
    return edit(
        dist(IB, "deep-ep", "1.2.1"),
        "gpu.driver.params",
        (Setting("EnableStreamMemOPs", "0"), Setting("RegistryDwords", text)),
    )


@pytest.mark.parametrize(
    ("in_force", "line"),
    [
        ("", "PeerMappingOverride=1;"),
        ('""', "PeerMappingOverride=1;"),
        ('"RMFoo=0x2;PeerMappingOverride=0"', "RMFoo=0x2;PeerMappingOverride=1;"),
        ("peermappingoverride = 0; RmX=1", "RmX=1;PeerMappingOverride=1;"),
        ("PeerMappingOverride=10;", "PeerMappingOverride=1;"),
    ],
)
def test_options_of_the_driver_that_are_in_force_are_kept(in_force: str, line: str) -> None:
    lines = commands("IBGDA-REGKEY", _dwords(in_force), ("deepep-1",))
    options = f'options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords="{line}"'
    assert lines[0].startswith("grep -rn NVreg_")
    assert lines[1] == f"echo '{options}' | sudo tee {installing.OPTIONS_FILE}"
    assert lines[2] == "sudo update-initramfs -u -k all"


@pytest.mark.parametrize("in_force", ["X='$(id)'", 'A=1";B', "A=`id`", "A=1\nB=2"])
def test_dwords_that_a_shell_would_take_for_more_are_not_repeated(in_force: str) -> None:
    assert regkeys.merged(in_force, PeerMappingOverride="1") == ""
    lines = commands("IBGDA-REGKEY", _dwords(in_force), ("deepep-1",))
    assert len(lines) == 1
    assert lines[0].startswith("grep -rn NVreg_")


def test_nothing_is_written_over_options_that_could_not_be_read() -> None:
    assert len(installing.driver_options(edit(IB, "gpu.driver.params", Absent("permission")), X="1")) == 1


def test_the_initramfs_is_that_of_the_distribution_and_the_host() -> None:
    node = edit(_dwords(""), "host.os", "Rocky Linux 9.4 (Blue Onyx)")
    assert "sudo dracut -f" in commands("IBGDA-REGKEY", node, ("deepep-1",))
    assert len(commands("IBGDA-REGKEY", edit(node, "host.container", "docker"), ("deepep-1",))) == 2


@pytest.mark.parametrize(
    ("system", "container", "line"),
    [
        ("Ubuntu 22.04.5 LTS", "none", ("sudo apt-get install libdw-dev",)),
        ("Debian GNU/Linux 12 (bookworm)", "docker", ("apt-get update && apt-get install libdw-dev",)),
        ("Red Hat Enterprise Linux 9.4 (Plow)", "none", ("sudo dnf install elfutils-devel",)),
        ("Amazon Linux 2023", "none", ("sudo dnf install elfutils-devel",)),
        ("Amazon Linux 2", "none", ("sudo yum install elfutils-devel",)),
        ("Red Hat Enterprise Linux CoreOS 417.94", "none", ()),
        ("Bottlerocket OS 1.32.0", "none", ()),
        ("SUSE Linux Enterprise Server 15 SP6", "none", ()),
    ],
)
def test_packages_are_those_of_the_distribution(system: str, container: str, line: tuple[str, ...]) -> None:
    node = edit(edit(IB, "host.os", system), "host.container", container)
    assert installing.packages(node, deb="libdw-dev", rpm="elfutils-devel") == line


def _nvshmem(version: str, torch_cuda: str | Absent) -> Snapshot:
    node = dist(dist(IB, "deep-ep", "1.2.1"), "nvidia-nvshmem-cu13", None)
    node = dist(node, "nvidia-nccl-cu13", None)
    return edit(edit(node, "software.nvshmem.0.version", version), "software.torch_cuda", torch_cuda)


@pytest.mark.parametrize("id", ["NVSHMEM-TOO-OLD", "NVSHMEM-QP-LAYOUT"])
@pytest.mark.parametrize(
    ("torch", "nvcc", "wheel"),
    [
        ("12.8", "13.1", "nvidia-nvshmem-cu12"),
        ("13.0", "13.1", "nvidia-nvshmem-cu13"),
        (Absent("not_found"), "12.4", "nvidia-nvshmem-cu12"),
        (Absent("not_found"), Absent("not_found"), "nvidia-nvshmem-cuCUDA_MAJOR"),
    ],
)
def test_the_nvshmem_that_is_proposed_fits_the_legacy_kernels_and_pytorch(
    id: str,  # noqa: A002
    torch: str | Absent,
    nvcc: str | Absent,
    wheel: str,
) -> None:
    """Neither the release that moved the queues (NVSHMEM-QP-LAYOUT), nor another CUDA major (CUDA-MAJOR-MIX)."""
    node = _nvshmem("3.2.5" if id == "NVSHMEM-TOO-OLD" else "3.5.19", torch)
    first, rebuild = commands(id, edit(node, "software.toolchain.nvcc_version", nvcc), ("deepep-1",))
    assert first == f"/opt/venv/bin/python3 -m pip install --no-deps '{wheel}>=3.3.9,<3.5.19'"
    assert rebuild.endswith("DEEPEP_SOURCE_FOLDER")
    assert "build deep_ep again" in run(id, node, ("deepep-1",)).fix


def _cuda(torch: str | Absent, nvcc: str | Absent) -> Snapshot:
    node = edit(edit(IB, "software.torch_cuda", torch), "software.toolchain.nvcc_version", nvcc)
    return edit(node, "software.toolchain.nvcc", nvcc) if isinstance(nvcc, Absent) else node


GONE = Absent("not_found")


@pytest.mark.parametrize(
    ("id", "node", "profiles", "release"),
    [
        ("JIT-NVCC-MISSING", _cuda("12.8", GONE), ("deepep-2",), "12.8"),
        ("JIT-NVCC-MISSING", _cuda("13.0", GONE), ("deepep-2",), "13.0"),
        ("JIT-NVCC-MISSING", _cuda("13.0", GONE), ("deepep-2.5",), "13.1"),
        ("JIT-NVCC-MISSING", _cuda(GONE, GONE), ("deepep-2",), "12.3"),
        ("JIT-NVCC-OLD", _cuda("12.1", "12.2.140"), ("deepep-2",), "12.3"),
        ("JIT-NVCC-OLD", _cuda("12.8", "12.2.140"), ("deepep-2",), "12.8"),
    ],
)
def test_the_toolkit_that_is_proposed_is_of_pytorchs_cuda(
    id: str,  # noqa: A002
    node: Snapshot,
    profiles: tuple[str, ...],
    release: str,
) -> None:
    dashed = release.replace(".", "-")
    wanted = (f"sudo apt-get install cuda-toolkit-{dashed}", f"export CUDA_HOME=/usr/local/cuda-{release}")
    assert commands(id, node, profiles) == wanted


@pytest.mark.parametrize("id", ["JIT-NVCC-MISSING", "JIT-NVCC-OLD"])
def test_no_toolkit_of_another_major_is_proposed(id: str) -> None:  # noqa: A002
    """A floor of CUDA 13 with a PyTorch of CUDA 12: following the command would make CUDA-MAJOR-MIX."""
    finding = run(id, _cuda("12.8", GONE if id == "JIT-NVCC-MISSING" else "12.8.93"), ("epctl",))
    assert finding.status == "failed"
    assert finding.commands == ()
    assert "PyTorch is built for CUDA 12.8" in finding.fix


@pytest.mark.parametrize(
    ("system", "compiler"),
    [
        ("Ubuntu 22.04.5 LTS", ""),
        ("Ubuntu 24.04.2 LTS", "/usr/bin/g++-13"),
        ("Rocky Linux 9.4 (Blue Onyx)", "/opt/rh/gcc-toolset-13/root/usr/bin/g++"),
        ("Debian GNU/Linux 12 (bookworm)", ""),
    ],
)
def test_a_compiler_is_proposed_where_the_distribution_has_it(system: str, compiler: str) -> None:
    lines = toolkit.newer_gxx(edit(IB, "host.os", system))
    assert [line for line in lines if "CCBIN" in line] == ([f"export NVCC_CCBIN={compiler}"] if compiler else [])


def test_other_options_of_pytorchs_allocator_stay() -> None:
    setting = "max_split_size_mb:128, expandable_segments:True,garbage_collection_threshold:0.8"
    node = edit(
        dist(IB, "mooncake-transfer-engine", "0.3.8"), "env.variables", (Setting("PYTORCH_CUDA_ALLOC_CONF", setting),)
    )
    lines = commands("PY-EXPANDABLE-SEGMENTS", node, ("deepep-2.5",))
    assert lines == ("export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128,garbage_collection_threshold:0.8",)


def test_the_list_of_gpus_is_that_of_the_node() -> None:
    node = edit(IB, "env.variables", (Setting("CUDA_VISIBLE_DEVICES", "GPU-1a"),))
    gpus = node.gpu.gpus
    assert isinstance(gpus, tuple)
    lines = commands("CTR-CVD-PER-RANK", edit(node, "gpu.gpus", gpus[:4]), ("deepep-2.5",))
    assert lines == ("export CUDA_VISIBLE_DEVICES=0,1,2,3",)


def test_the_depth_of_queues_is_enough_for_the_tokens() -> None:
    node = edit(dist(IB, "deep-ep", "1.2.1"), "env.variables", (Setting("VLLM_MOE_DP_CHUNK_SIZE", "2048"),))
    assert commands("NVSHMEM-QP-DEPTH", node, ("deepep-1",)) == ("export NVSHMEM_QP_DEPTH=8192",)
