"""Several nodes on one machine: the environment that makes NCCL take ranks of one machine for ranks of several, and carry GIN between
them with the loopback plugin. What runs over it is correct or not; how fast it is says nothing about a network."""

from __future__ import annotations

from pathlib import Path

from epctl.core.errors import EpctlError

MAX_PLUGIN_LENGTH = 255
"""Characters of one name in NCCL_RMA_PLUGIN; a longer one is ignored (github.com/NVIDIA/nccl, src/plugin/rma.cc and "longer than %d
characters, ignoring it" in the library)."""
GIN_TYPE_PROXY = 2
"""NCCL_GIN_TYPE_PROXY of nccl_device/core.h."""


def environment(num_nodes: int, node_idx: int, plugin: Path, *, share_gpus: bool = False) -> dict[str, str]:
    """Variables for a rank of emulated node `node_idx` of `num_nodes`, to be set before NCCL and the CUDA driver are loaded.
    `plugin`: the path that loopback_plugin.obtain returns. `share_gpus`: more ranks than GPUs.

    NCCL_RMA_PLUGIN             GIN's proxy hands its puts, gets and signals to the plugin
    NCCL_GIN_TYPE               the proxy, where the machine's own NICs would offer GIN from the GPU: what is called emulated must be
    NCCL_HOSTID                 NCCL compares it to tell hosts apart, instead of the name of the machine and its boot id
    NCCL_MNNVL_ENABLE           off: NVLink between machines would make the emulated nodes one load/store domain again
    CUDA_MODULE_LOADING         kernels are loaded at start-up: to load one while another waits for a signal may wait for that one
    CUDA_DEVICE_MAX_CONNECTIONS all 32 queues of the GPU: streams that share one wait for each other, and the plugin's may not wait for
                                that of a kernel that waits for a signal
    NCCL_MULTI_RANK_GPU_ENABLE  only with `share_gpus`: NCCL (2.32 on) otherwise refuses two ranks on one GPU

    NVLink multicast stays as the user has it. Raises EpctlError for a node that does not exist, and a path that NCCL would not read."""
    if num_nodes < 1 or not 0 <= node_idx < num_nodes:
        raise EpctlError(
            f"there is no emulated node {node_idx}",
            f"{num_nodes} nodes are emulated, counted from 0",
            "give --emulate-nodes a number of nodes that divides the number of ranks",
        )
    path = str(plugin)
    if "," in path or len(path) > MAX_PLUGIN_LENGTH:
        raise EpctlError(
            "NCCL cannot load the loopback plugin from its path",
            f"{path}: NCCL_RMA_PLUGIN is a list with commas of names of at most {MAX_PLUGIN_LENGTH} characters",
            "set EPCTL_CACHE_DIR to a folder with a short name without commas",
        )
    variables = {
        "NCCL_RMA_PLUGIN": path,
        "NCCL_GIN_TYPE": str(GIN_TYPE_PROXY),
        "NCCL_HOSTID": f"epctl-emulated-node-{node_idx}",
        "NCCL_MNNVL_ENABLE": "0",
        "CUDA_MODULE_LOADING": "EAGER",
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    }
    if share_gpus:
        variables["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    return variables
