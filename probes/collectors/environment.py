"""Environment variables that decide how EP runs, without anything that smells of a secret."""

from __future__ import annotations

import json
import os
import re
import sys

PREFIXES = (
    "NCCL_",
    "NVSHMEM_",
    "NVSHMEMX_",
    "EP_",
    "DEEPINFER_",
    "DEEPEP_",
    "DEEP_EP_",
    "DG_",
    "FI_",
    "OFI_NCCL_",
    "RDMAV_",
    "IBV_",
    "MLX5_",
    "CUDA_",
    "NVIDIA_",
    "GLOO_",
    "UCX_",
    "PYTORCH_",
    "TORCH_",
    "VLLM_",
    "SGLANG_",
    "SLURM_",
    "OMPI_COMM_WORLD_",
)
NAMES = frozenset(
    (
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "CPATH",
        "CPLUS_INCLUDE_PATH",
        "NVCC_CCBIN",
        "NVCC_PREPEND_FLAGS",
        "NVCC_APPEND_FLAGS",
        "CC",
        "CXX",
        "CONDA_PREFIX",
        "VIRTUAL_ENV",
        "MASTER_ADDR",
        "MASTER_PORT",
        "WORLD_SIZE",
        "RANK",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
    )
)
MAX_VALUE_CHARS = 4096
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL|JWT|PRIVATE|(?:^|_)AUTH(?:_|$)")
_SMALL_NUMBER = re.compile(r"[0-9]{1,7}", re.ASCII)


def is_wanted(name: str) -> bool:
    """A check may want to look at this variable."""
    return name.startswith(PREFIXES) or name in NAMES


def is_secret(name: str, value: str) -> bool:
    """The value must not be told. A count of tokens (SGLANG_…_MAX_DISPATCH_TOKENS_PER_RANK) and a partition key are none."""
    upper = name.upper().replace("TOKENS", "") if _SMALL_NUMBER.fullmatch(value) else name.upper()
    return _SECRET.search(re.sub(r"(^|_)PKEY(_INDEX)?(?=_|$)", "", upper)) is not None


def main() -> None:
    """Prints the document."""
    wanted = {name: value for name, value in os.environ.items() if is_wanted(name)}
    told = {name: value[:MAX_VALUE_CHARS] for name, value in wanted.items() if not is_secret(name, value)}
    clean = {_clean(name): _clean(value) for name, value in sorted(told.items())}
    withheld = sorted(_clean(name) for name in wanted if name not in told)
    document = {"variables": clean, "withheld": withheld, "home": _clean(os.path.expanduser("~"))}  # noqa: PTH111
    json.dump(document, sys.stdout)


def _clean(text: str) -> str:
    """Without the surrogates that stand for bytes that are no UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


if __name__ == "__main__":
    main()
