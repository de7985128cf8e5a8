"""Commands hit what the evidence names: this Python, this interface, this GPU, and numbers that are enough."""

from __future__ import annotations

import msgspec
import pytest

import epctl.checks  # noqa: F401 - registers them
from epctl.core.fact import Absent, value_or
from epctl.core.snapshot import Snapshot
from epctl.core.views import installing
from tests.support.cases import run
from tests.support.nodes import dist, edit, efa_node, gb200_node, ib_node, roce_node

IB = ib_node()


def commands(id: str, node: Snapshot, profiles: tuple[str, ...]) -> tuple[str, ...]:  # noqa: A002
    finding = run(id, node, profiles)
    assert finding.status == "failed", finding
    return finding.commands


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
    devs = edit(node, "rdma.netdevs.4.kind", "bond").rdma.netdevs
    assert isinstance(devs, tuple)
    bond = msgspec.structs.replace(devs[4], name="bond0")
    node = edit(
        edit(node, "rdma.netdevs", (*value_or(node.rdma.netdevs, ()), bond)),
        "rdma.devices.3.netdevs",
        ("eth3", "bond0"),
    )
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
    finding = run(
        "PROFILE-CUDA-TOOLKIT",
        edit(edit(IB, "software.torch_cuda", "12.8"), "software.toolchain.nvcc_version", "12.8.93"),
        ("deepep-2.5",),
    )
    assert finding.commands == ()
    assert "PyTorch is built for CUDA 12.8" in finding.fix
