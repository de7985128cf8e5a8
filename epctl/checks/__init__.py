"""The catalogue of conditions, one module an area. Importing this package registers them all."""

from __future__ import annotations

from importlib import import_module

MODULES: tuple[str, ...] = (
    "job",
    "job_start",
    "job_network",
    "job_gin",
    "job_rdma",
    "job_gpu",
    "driver",
    "cuda",
    "gpu",
    "gpu_errors",
    "nvlink",
    "fabric",
    "pcie",
    "affinity",
    "rdma",
    "hca",
    "roce",
    "roce_class",
    "efa",
    "efa_gda",
    "efa_limits",
    "gdr",
    "gdrcopy",
    "atomics",
    "nccl",
    "net_plugin",
    "gin",
    "gin_canary",
    "symmem",
    "nvshmem",
    "ibgda",
    "env",
    "env_sockets",
    "profile",
    "profile_features",
    "limits",
    "limits_shared",
    "container",
    "python",
    "jit",
    "jit_headers",
    "jit_cache",
    "topology",
    "perf",
)
"""Modules of this package, in the order of reports."""

for _name in MODULES:
    import_module(f"epctl.checks.{_name}")
