"""Bad arguments of the expert-parallel calls: what is wrong, its shape, and what was expected."""

from __future__ import annotations

from typing import Any, TypeAlias

from epctl.core.errors import EpctlError
from epctl.native.ep_sizes import MAX_EXPERTS, MAX_TOPK

Tensor: TypeAlias = Any
"""torch.Tensor."""
HIDDEN_STEP = 128
MAX_HIDDEN = 16384
MAX_TOKENS = 16384


def describe(value: object) -> str:
    """torch.bfloat16 [128, 7168] on cuda:0"""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype} {list(value.shape)} on {getattr(value, 'device', '?')}"
    return f"{value!r}"


def refuse(name: str, value: object, expected: str) -> EpctlError:
    """The error for an argument."""
    return EpctlError(f"{name} is {describe(value)}", f"expected is {expected}", f"change {name}")


def tensor(
    name: str,
    value: Tensor,
    shape: tuple[int | None, ...],
    dtypes: tuple[Any, ...],
    device: Any,  # noqa: ANN401 - torch.device
    *,
    align_bytes: int = 16,
) -> None:
    """Raises EpctlError unless it is a contiguous tensor of that shape (None: any size), one of the dtypes, on the device, at a
    multiple of align_bytes: 16 for what is moved by vectors and bulk copies."""
    fits = (
        hasattr(value, "shape")
        and len(value.shape) == len(shape)
        and all(want is None or want == have for want, have in zip(shape, value.shape, strict=True))
    )
    if not fits or value.dtype not in dtypes or value.device != device or not value.is_contiguous():
        raise refuse(name, value, _expected(shape, dtypes, device))
    if value.data_ptr() % align_bytes:
        expected = _expected(shape, dtypes, device)
        raise refuse(name, value, f"{expected}, beginning at a multiple of {align_bytes} bytes")


def _expected(shape: tuple[int | None, ...], dtypes: tuple[Any, ...], device: Any) -> str:  # noqa: ANN401 - torch.device
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    return f"a contiguous {' or '.join(str(dtype) for dtype in dtypes)} [{sizes}] on {device}"


def between(name: str, value: object, low: int, high: int) -> int:
    """The number. Raises EpctlError unless it is an int within the limits."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise refuse(name, value, f"a whole number from {low} to {high}")
    return value


def hidden(value: int) -> int:
    """Raises EpctlError unless the kernels can move such rows."""
    if value % HIDDEN_STEP or not 0 < value <= MAX_HIDDEN:
        raise refuse("hidden", value, f"a multiple of {HIDDEN_STEP} up to {MAX_HIDDEN}")
    return value


def experts(value: object, num_ranks: int) -> int:
    """Raises EpctlError unless every rank has the same number of experts."""
    number = between("num_experts", value, 1, MAX_EXPERTS)
    if number % num_ranks:
        raise refuse("num_experts", value, f"a multiple of the number of ranks, {num_ranks}")
    return number


def topk(value: int) -> int:
    """Raises EpctlError for more selections than a warp keeps apart."""
    return between("num_topk (topk_idx.shape[1])", value, 1, MAX_TOPK)


def tokens(value: int) -> int:
    """Raises EpctlError unless it is a number of tokens that a buffer can be made for."""
    return between("num_max_tokens_per_rank", value, 1, MAX_TOKENS)
