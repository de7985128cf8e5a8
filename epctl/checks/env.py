"""Checks of environment variables that contradict the node, the job or one another."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Need, Seen, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known
from epctl.core.snapshot.software import Root, SharedLibrary
from epctl.core.views import gin, nics, versions
from epctl.core.views.gin import AUTO, EFA_GDA, GDAKI, GPI, PROXY, SEVERAL_NODES
from epctl.core.views.needs import EFA, GPU, RDMA
from epctl.core.views.settings import integer, is_off, is_on, number, setting, told
from epctl.core.wording import counted

EFA_GDA_NCCL = "2.31.0"
"""First NCCL that knows GIN type 5."""
DEEPEP2_SL = 3
"""Service level of DeepEP 2 when EP_OVERRIDE_RDMA_SL is not set (deep_ep/buffers/elastic.py)."""
SL_VARIABLES = ("NCCL_IB_SL", "EP_OVERRIDE_RDMA_SL", "EP_DEFAULT_RDMA_SL")


@check(
    "ENV-GIN-DISABLED",
    area="env",
    severity="fail",
    title="GIN is switched off for a job that needs the network",
    why="Without GIN, EP cannot leave its NVLink domain: nodes do not reach one another.",
    fix="Unset NCCL_GIN_ENABLE and EP_DISABLE_GIN for jobs of more than one NVLink domain.",
    commands=("unset NCCL_GIN_ENABLE EP_DISABLE_GIN",),
    reference="https://github.com/deepseek-ai/DeepEP/issues/629 "
    "https://github.com/NVIDIA/nccl/blob/master/src/gin/gin_host.cc",
    needs=(GPU,),
)
def env_gin_disabled(context: Context) -> Iterator[Seen]:
    off = [told(context, "NCCL_GIN_ENABLE")] if is_off(context, "NCCL_GIN_ENABLE") else []
    off += [told(context, "EP_DISABLE_GIN")] if is_on(context, "EP_DISABLE_GIN") else []
    if not off:
        yield good("neither NCCL_GIN_ENABLE=0 nor EP_DISABLE_GIN is set")
    elif gin.one_nvlink_domain(context):
        yield good(f"{', '.join(off)}; the planned job stays in one NVLink domain")
    else:
        for text in off:
            yield bad(f"{text}; the planned job has {context.num_nodes} nodes")


@check(
    "ENV-IB-DISABLED",
    area="env",
    severity="fail",
    title="NCCL is told to leave the RDMA ports alone",
    why="NCCL_IB_DISABLE takes InfiniBand and RoCE away: traffic between nodes goes over TCP, and there is no GIN.",
    fix="Remove NCCL_IB_DISABLE from the environment, the image and NCCL's configuration files.",
    commands=("unset NCCL_IB_DISABLE", "grep -n NCCL_IB_DISABLE /etc/nccl.conf ~/.nccl.conf"),
    reference="https://github.com/NVIDIA/nccl/blob/master/src/transport/net_ib/init.cc "
    "https://github.com/microsoft/DLWorkspace/issues/694",
    needs=(RDMA,),
)
def env_ib_disabled(context: Context) -> Iterator[Seen]:
    if not is_on(context, "NCCL_IB_DISABLE"):
        yield good("NCCL_IB_DISABLE is not set")
        return
    ports = [nic for nic in nics.ports(context.node) if nic.active and not nic.is_efa]
    if not ports:
        yield good(f"{told(context, 'NCCL_IB_DISABLE')}, and no InfiniBand or RoCE port is active")
        return
    text = f"{told(context, 'NCCL_IB_DISABLE')}, {counted(len(ports), 'active port')} ({ports[0].label}{' …' if len(ports) > 1 else ''})"
    matters = context.num_nodes > 1 or gin.needed(context)
    yield bad(text, severity=None if matters else "info")


@check(
    "ENV-GIN-TYPE-MISMATCH",
    area="env",
    severity="fail",
    title="NCCL_GIN_TYPE asks for a backend that this node lacks",
    why="NCCL skips every GIN plugin of another type, so there is no GIN at all.",
    fix="Unset NCCL_GIN_TYPE, or take a type that the adapters have: 2 proxy, 3 GDAKI (mlx5), 5 EFA-GDA (EFA).",
    commands=("unset NCCL_GIN_TYPE",),
    reference="https://github.com/NVIDIA/nccl/blob/master/src/plugin/gin.cc "
    "https://github.com/aws/aws-ofi-nccl/blob/master/doc/gin-getting-started.md",
    needs=(GPU,),
)
def env_gin_type_mismatch(context: Context) -> Iterator[Seen]:
    kind = gin.gin_type(context)
    if kind == AUTO:
        yield good("NCCL_GIN_TYPE is unset: NCCL chooses")
        return
    text = told(context, "NCCL_GIN_TYPE")
    if kind not in (PROXY, GDAKI, GPI, EFA_GDA):
        yield bad(f"{text} names no backend")
        return
    if kind == GPI:
        yield unread(text, Absent("not_read", "whether a plugin for GPI is installed"))
        return
    drivers = sorted({gin.driver(device) for device in nics.devices(context.node)})
    driver = {GDAKI: "mlx5_core", EFA_GDA: "efa"}.get(kind)
    if not drivers or (driver and driver not in drivers):
        yield bad(f"{text} needs {driver or 'an RDMA device'}; drivers here: {', '.join(drivers) or 'none'}")
        return
    if kind == EFA_GDA:
        nccl = known(context.node.software.nccl_effective, "version of the NCCL in use")
        if versions.below(nccl, EFA_GDA_NCCL):
            yield bad(f"{text}, but NCCL {nccl} does not know this type ({EFA_GDA_NCCL} does)", fix="Upgrade NCCL.")
            return
    yield good(f"{text}; drivers here: {', '.join(drivers)}")


def _efa_only(context: Context) -> str:
    others = [device.name for device in nics.devices(context.node) if gin.driver(device) != "efa"]
    return f"RDMA devices other than EFA: {', '.join(others)}" if others else ""


@check(
    "ENV-EFA-IBVARS",
    area="env",
    severity="warn",
    title="InfiniBand settings are in force on EFA",
    why="EFA has no GIDs, service levels or HCA names of that kind: the settings do nothing, or keep devices from being found.",
    fix="Remove NCCL_IB_*, NVSHMEM_HCA_* and GID settings on EFA nodes.",
    reference="https://github.com/SemiAnalysisAI/InferenceX/issues/2979",
    needs=(EFA, Need("efa_only", _efa_only)),
)
def env_efa_ibvars(context: Context) -> Iterator[Seen]:
    prefixes = ("NCCL_IB_", "NVSHMEM_HCA_", "NVSHMEM_IB_GID_")
    # NCCL_IB_DISABLE is what keeps NCCL from trying its own transport where the plugin fails, and does no harm here.
    wrong = sorted(name for name in context.env if name.startswith(prefixes) and name != "NCCL_IB_DISABLE")
    for name in wrong:
        yield bad(told(context, name))
    if not wrong:
        yield good("no NCCL_IB_*, NVSHMEM_HCA_* or GID setting")


def _verbs_port(context: Context) -> str:
    return "" if any(not nic.is_efa for nic in nics.ports(context.node)) else "EFA has no service levels"


@check(
    "ENV-SL-MISMATCH",
    area="env",
    severity="warn",
    title="EP and NCCL use different service levels",
    why="Adaptive routing and the intended virtual lane often belong to one service level; the traffic on another one misses them.",
    fix="Set NCCL_IB_SL and EP_OVERRIDE_RDMA_SL to the level that the fabric maps to the lane with adaptive routing.",
    reference="https://github.com/NVIDIA/nccl-tests/issues/199 https://github.com/NVIDIA/nccl/issues/1687",
    needs=(RDMA, Need("verbs_port", _verbs_port)),
)
def env_sl_mismatch(context: Context) -> Iterator[Seen]:
    levels = {name: level for name in SL_VARIABLES if (level := number(context, name)) is not None}
    texts = [told(context, name) for name in levels]
    if list(levels) == ["NCCL_IB_SL"] and context.profile("deepep-2"):
        levels["DeepEP 2"] = DEEPEP2_SL
        texts.append(f"DeepEP 2 takes {DEEPEP2_SL} by default")
    if len(set(levels.values())) > 1:
        yield bad(", ".join(texts))
    else:
        yield good(", ".join(texts) or "no service level is set")


@check(
    "ENV-ROOT-OVERRIDE",
    area="env",
    severity="warn",
    title="A root folder in the environment stands before the installed package",
    why="EP_*_ROOT_DIR, NCCL_DIR and NVSHMEM_DIR win over packages without a word and without a test that the folder is right.",
    fix="Unset the variable, or point it at the copy that PyTorch loads.",
    reference="https://github.com/deepseek-ai/DeepEP/blob/main/deep_ep/utils/find_pkgs.py",
    needs=(GPU,),
)
def env_root_override(context: Context) -> Iterator[Seen]:
    roots = context.node.software.roots
    for root in roots:
        has_include = known(root.has_include, f"{root.path}/include ({root.variable})")
        has_lib = known(root.has_lib, f"{root.path}/lib ({root.variable})")
        lacking = [name for name, there in (("include", has_include), ("lib", has_lib)) if not there]
        if lacking:
            text = f"{root.variable}={root.path} has no {' and no '.join(lacking)}"
            yield bad(text, severity="fail", fix=f"Unset {root.variable}, or correct its path.")
        else:
            yield _root_version(context, root)
    if not roots:
        known(context.node.env.variables, "environment variables")
        yield good("no root folder of NCCL or NVSHMEM is set")


def _root_version(context: Context, root: Root) -> Seen:
    """Compares the library below a root with the one that would be used without it."""
    software = context.node.software
    nvshmem = "NVSHMEM" in root.variable
    libraries = known(software.nvshmem if nvshmem else software.nccl, f"libraries for {root.variable}")
    inside = root.path.rstrip("/") + "/"
    own = next((entry for entry in libraries if entry.origin == "root" and entry.path.startswith(inside)), None)
    text = f"{root.variable}={root.path}"
    if own is None:
        return unread(text, Absent("not_read", "its library was not looked at"))
    version = known(own.version, f"version of {own.path}")
    other = _package_version(libraries) if nvshmem else known(software.nccl_effective, "version of the NCCL in use")
    if other and other != version:
        return bad(f"{text} holds {version}, {'the package' if nvshmem else 'PyTorch'} has {other}")
    return good(f"{text} holds {version}")


def _package_version(libraries: tuple[SharedLibrary, ...]) -> str:
    package = next((entry for entry in libraries if entry.origin == "package"), None)
    return "" if package is None else known(package.version, f"version of {package.path}")


def _symmetric_option(context: Context) -> str:
    on = is_on(context, "VLLM_USE_NCCL_SYMM_MEM")
    return "" if on else "VLLM_USE_NCCL_SYMM_MEM is not set"


@check(
    "ENV-NVLS-OFF-SYMM",
    area="env",
    severity="warn",
    title="Symmetric memory is asked for and its parts are switched off",
    why="The serving framework's symmetric all-reduce wants cuMem and NVLS; a workaround that set them to 0 makes it fail or idle.",
    fix="Remove NCCL_CUMEM_ENABLE=0 and NCCL_NVLS_ENABLE=0 once NVLS works, or unset VLLM_USE_NCCL_SYMM_MEM.",
    reference="https://github.com/vllm-project/vllm/pull/24532",
    needs=(GPU, Need("symmetric_option", _symmetric_option)),
)
def env_nvls_off_symm(context: Context) -> Iterator[Seen]:
    off = [name for name in ("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE") if is_off(context, name)]
    for name in off:
        yield bad(f"{told(context, 'VLLM_USE_NCCL_SYMM_MEM')}, {told(context, name)}")
    if not off:
        yield good("NCCL_CUMEM_ENABLE and NCCL_NVLS_ENABLE are not off")


def _vllm_with_deepep(context: Context) -> str:
    if "vllm" not in context.distributions:
        return "vLLM is not installed"
    return "" if context.profile("deepep-2") or context.profile("deepep-2.5") else "DeepEP 2 is not in use"


@check(
    "ENV-VLLM-HYBRID-OFF",
    area="env",
    severity="warn",
    title="vLLM keeps DeepEP out of hybrid mode on a rail-only network",
    why="vLLM releases leave hybrid mode off unless VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE says otherwise, and then refuse a network that "
    "offers rail connections only.",
    fix="Set VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE=1 on all nodes.",
    commands=("export VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE=1",),
    reference="https://github.com/vllm-project/vllm/pull/57991 https://github.com/vllm-project/vllm/issues/54281",
    needs=(RDMA, SEVERAL_NODES, Need("vllm_deepep", _vllm_with_deepep)),
)
def env_vllm_hybrid_off(context: Context) -> Iterator[Seen]:
    mode = setting(context, "VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE")
    if not is_off(context, "NCCL_CROSS_NIC"):
        yield good("NCCL_CROSS_NIC is not 0: the network is not limited to rails")
    elif mode is not None and integer(mode):
        yield good(f"VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE={mode}")
    else:
        yield bad(
            f"vLLM {context.distributions['vllm']}, {told(context, 'NCCL_CROSS_NIC')}, "
            f"VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE is {mode or 'unset'}"
        )
