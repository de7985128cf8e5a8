"""The catalogue of conditions, one module an area. Importing this package registers them all."""

from __future__ import annotations

from importlib import import_module

MODULES: tuple[str, ...] = (
    "driver",
    "cuda",
    "gpu",
    "gpu_errors",
    "nvlink",
    "fabric",
    "pcie",
    "rdma",
    "roce",
    "efa",
    "gdr",
    "atomics",
    "nccl",
    "gin",
    "nvshmem",
    "env",
    "limits",
    "container",
    "python",
    "jit",
    "topology",
    "perf",
)
"""Modules of this package, in the order of reports."""

for _name in MODULES:
    import_module(f"epctl.checks.{_name}")
