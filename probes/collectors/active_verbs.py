"""Opens each RDMA device through libibverbs and asks whether it registers DMA-BUF memory, as NCCL does: a registration of
descriptor -1 must fail, and the way it fails tells."""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

LIBRARY = "libibverbs.so.1"
LENGTH_BYTES = 4096


def main() -> None:
    """Prints {"devices": [{"device", "opened", "dmabuf_errno"}]}."""
    json.dump({"devices": probe()}, sys.stdout)


def probe() -> Any:  # noqa: ANN401 - JSON
    """The devices, or why there are none."""
    try:
        verbs = ctypes.CDLL(LIBRARY, use_errno=True)
    except OSError as error:
        return {"error": "not_found", "detail": str(error)}
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_get_device_list.argtypes = [ctypes.POINTER(ctypes.c_int)]
    verbs.ibv_free_device_list.argtypes = [ctypes.POINTER(ctypes.c_void_p)]
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    for name in ("ibv_get_device_name", "ibv_open_device", "ibv_alloc_pd", "ibv_close_device", "ibv_dealloc_pd"):
        getattr(verbs, name).argtypes = [ctypes.c_void_p]
    verbs.ibv_open_device.restype = verbs.ibv_alloc_pd.restype = ctypes.c_void_p
    count = ctypes.c_int(0)
    listed = verbs.ibv_get_device_list(ctypes.byref(count))
    if not listed:
        return (
            [] if ctypes.get_errno() == 38 else {"error": "failed", "detail": f"errno {ctypes.get_errno()}"}
        )  # ENOSYS
    found = [_device(verbs, listed[i]) for i in range(count.value)]
    verbs.ibv_free_device_list(listed)
    return found


def _device(verbs: Any, device: Any) -> dict[str, Any]:  # noqa: ANN401 - ctypes
    name = verbs.ibv_get_device_name(device).decode("utf-8", "replace")
    context = verbs.ibv_open_device(device)
    if not context:
        why = {"error": "failed", "detail": "the device could not be opened"}
        return {"device": name, "opened": False, "dmabuf_errno": why}
    found = {"device": name, "opened": True, "dmabuf_errno": _dmabuf_errno(verbs, context)}
    verbs.ibv_close_device(context)
    return found


def _dmabuf_errno(verbs: Any, context: Any) -> Any:  # noqa: ANN401 - ctypes
    if not hasattr(verbs, "ibv_reg_dmabuf_mr"):
        return {"error": "unsupported", "detail": "this libibverbs has no ibv_reg_dmabuf_mr"}
    domain = verbs.ibv_alloc_pd(context)
    if not domain:
        return {"error": "failed", "detail": f"ibv_alloc_pd: errno {ctypes.get_errno()}"}
    register = verbs.ibv_reg_dmabuf_mr
    register.restype = ctypes.c_void_p
    register.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_size_t,
        ctypes.c_uint64,
        ctypes.c_int,
        ctypes.c_int,
    ]
    ctypes.set_errno(0)
    region = register(domain, 0, LENGTH_BYTES, 0, -1, 0)
    number = ctypes.get_errno()
    if region:
        verbs.ibv_dereg_mr.argtypes = [ctypes.c_void_p]
        verbs.ibv_dereg_mr(region)
    verbs.ibv_dealloc_pd(domain)
    return 0 if region else number


if __name__ == "__main__":
    main()
