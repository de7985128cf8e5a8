"""Commands that are made from a node's facts: they fit its distribution, its PyTorch and the options in force there."""

from __future__ import annotations

import pytest

import epctl.checks  # noqa: F401 - registers them
from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot
from epctl.core.snapshot.gpu import Setting
from epctl.core.views import installing, regkeys, toolkit
from tests.support.cases import run
from tests.support.nodes import dist, edit, efa_node, gb200_node, ib_node, roce_node

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


@pytest.mark.parametrize(
    ("torch", "wheel"),
    [("13.0", "cu13"), ("12.8", "cu12"), (Absent("not_found"), "cu12"), (Absent("permission"), "cu12")],
)
def test_nccl_is_installed_into_the_python_of_the_job_and_for_its_cuda(torch: str | Absent, wheel: str) -> None:
    """Without PyTorch the compiler tells the CUDA major; 13 was a guess."""
    node = edit(edit(IB, "software.nccl_effective", "2.28.9"), "software.torch_cuda", torch)
    node = dist(dist(node, "nvidia-nccl-cu13", None), "nvidia-nvshmem-cu13", None)
    node = edit(
        edit(node, "software.toolchain.nvcc_version", "12.8.93"), "software.python_executable", "/srv/my env/bin/python"
    )
    line = f"'/srv/my env/bin/python' -m pip install --no-deps --force-reinstall 'nvidia-nccl-{wheel}>=2.32.3'"
    assert commands("NCCL-TOO-OLD", node, ("deepep-2.5",)) == (line,)
    unknown = edit(node, "software.python_executable", Absent("not_found"))
    assert commands("NCCL-TOO-OLD", unknown, ("deepep-2.5",))[0].startswith("python -m pip install")


@pytest.mark.parametrize(
    ("nodes", "limit", "wanted"), [(100, 1048576, 2097152), (8, 1024, 131072), (8, 65536, 131072), (16, 4096, 262144)]
)
def test_a_limit_is_raised_to_what_is_needed_and_never_lowered(nodes: int, limit: int, wanted: int) -> None:
    finding = run("LIM-NOFILE", edit(IB, "host.nofile", limit), ("deepep-2",), nodes)
    assert finding.status == "failed"
    need = max(int(text.rsplit(" ", 1)[1]) for text in finding.evidence if "take about" in text)
    soft = [int(line.rsplit(" ", 1)[1]) for line in finding.commands if line.startswith("ulimit -S")]
    assert max(soft) == wanted
    assert all(number > limit for number in soft)
    assert max(soft) >= need
    (file,) = [line for line in finding.commands if "nofile.conf" in line and str(wanted) in line]
    assert f"'* hard' {max(wanted, 1048576)}" in file
    assert "131072" not in finding.fix


def test_the_module_option_of_imex_leaves_other_files_alone() -> None:
    node = edit(gb200_node(), "host.nvidia_nodes", ())
    lines = commands("IMEX-CHANNEL-MISSING", node, ("deepep-2.5",))
    assert f"echo 'options nvidia NVreg_CreateImexChannel0=1' | sudo tee {installing.IMEX_FILE}" in lines
    assert installing.IMEX_FILE != installing.OPTIONS_FILE


@pytest.mark.parametrize(
    ("system", "line"),
    [
        ("Ubuntu 24.04.2 LTS", "sudo apt-get install ibverbs-providers"),
        ("Rocky Linux 9.4 (Blue Onyx)", "sudo dnf install libibverbs"),
        ("SUSE Linux Enterprise Server 15 SP6", ""),
    ],
)
def test_the_provider_is_that_of_the_distribution_and_the_adapter(system: str, line: str) -> None:
    def without(node: Snapshot) -> Snapshot:
        return edit(edit(edit(node, "rdma.ibv_devices", ()), "active.verbs", ()), "host.os", system)

    assert commands("RDMA-PROVIDER-MISSING", without(IB), ("deepep-2.5",)) == ((line,) if line else ())
    efa = run("RDMA-PROVIDER-MISSING", without(efa_node()), ("efa",))
    assert efa.commands == ()
    assert "EFA installer" in efa.fix


@pytest.mark.parametrize(
    ("mtus", "wanted"),
    [({}, "9000"), ({"*": 4200, "4": 1500}, "4200"), ({"*": 1500}, "9000"), ({"*": 9216, "4": 1500}, "9216")],
)
def test_an_interface_gets_the_mtu_of_its_sisters(mtus: dict[str, int], wanted: str) -> None:
    """netdevs.0 is the front end, .4 belongs to mlx5_3."""
    node = edit(roce_node(), "rdma.devices.3.ports.0.active_mtu", 1024)
    for which, size in (mtus or {"4": 1500}).items():
        node = edit(node, f"rdma.netdevs.{which}.mtu", size)
    for id in ("ROCE-MTU-SMALL", "ROCE-MTU-UNEVEN"):  # noqa: A001
        assert commands(id, node, ("deepep-2.5",)) == (f"sudo ip link set dev eth3 mtu {wanted}",)
        assert commands(id, edit(node, "host.container", "docker"), ("deepep-2.5",)) == ()
        odd = edit(edit(node, "rdma.netdevs.4.name", "x; reboot"), "rdma.devices.3.netdevs", ("x; reboot",))
        assert commands(id, odd, ("deepep-2.5",)) == ()
    large = edit(node, "rdma.netdevs.4.mtu", 9000)
    assert commands("ROCE-MTU-SMALL", large, ("deepep-2.5",)) == (), "the interface is not what keeps it small"


def test_the_mtu_of_a_bond_is_set_and_not_that_of_its_members() -> None:
    node = edit(edit(roce_node(), "rdma.devices.3.ports.0.active_mtu", 1024), "rdma.netdevs.4.mtu", 1500)
    devs = node.rdma.netdevs
    assert isinstance(devs, tuple)
    bond = edit(edit(node, "rdma.netdevs.4.kind", "bond").rdma.netdevs[4], "name", "bond0")  # type: ignore[index]
    node = edit(edit(node, "rdma.netdevs", (*devs, bond)), "rdma.devices.3.netdevs", ("eth3", "bond0"))
    assert commands("ROCE-MTU-SMALL", node, ("deepep-2.5",)) == ("sudo ip link set dev bond0 mtu 9000",)


def test_the_link_of_the_evidence_is_looked_at_and_its_gpu_is_reset_on_the_host_alone() -> None:
    down = edit(IB, "gpu.gpus.5.links.4.active", False)
    look = ("nvidia-smi nvlink -s -i 5", "nvidia-smi nvlink -e -i 5")
    assert commands("NVLINK-INACTIVE", down, ("deepep-2.5",)) == (*look, "sudo nvidia-smi --gpu-reset -i 5")
    assert commands("NVLINK-INACTIVE", edit(down, "host.container", "docker"), ("deepep-2.5",)) == look
    counters = (("symbol_error", 900), ("link_downed", 0))
    cable = edit(IB, "rdma.devices.3.ports.0.counters", counters)
    assert commands("PERF-IB-ERR-COUNTERS", cable, ("deepep-2.5",)) == (
        "perfquery -x -C mlx5_3 -P 1",
        "sudo mlxlink -d mlx5_3 -c -e",
    )


@pytest.mark.parametrize("nvcc", ["12.2.140", "12.8.93", "13.0.88"])
def test_one_toolkit_is_asked_for_whoever_says_it(nvcc: str) -> None:
    """12.9 is what the sources of DeepEP 2.5 assert, 13.1 what it needs: people shall not install twice."""
    node = edit(IB, "software.toolchain.nvcc_version", nvcc)
    told = [run(name, node, ("deepep-2.5",)) for name in ("JIT-NVCC-OLD", "PROFILE-CUDA-TOOLKIT")]
    failed = [finding for finding in told if finding.status == "failed"]
    assert failed
    assert {finding.commands for finding in failed} == {
        ("sudo apt-get install cuda-toolkit-13-1", "export CUDA_HOME=/usr/local/cuda-13.1")
    }
    for finding in failed:
        assert "13.1" in " ".join(finding.evidence)
        assert "12.9" not in " ".join(finding.evidence)


def test_no_toolkit_beyond_pytorchs_cuda_is_proposed_for_a_profile() -> None:
    finding = run("PROFILE-CUDA-TOOLKIT", _cuda("12.8", "12.8.93"), ("deepep-2.5",))
    assert finding.commands == ()
    assert "PyTorch is built for CUDA 12.8" in finding.fix
