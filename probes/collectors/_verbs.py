"""The few calls of libibverbs and libmlx5 that collectors make, through ctypes. Signatures, layouts and numbers are those of
verbs.h, mlx5dv.h and mlx5_user_ioctl_verbs.h (rdma-core 44; MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED: rdma-core 47).

Unverified on RDMA hardware: tested against libraries that play it.
"""

from __future__ import annotations

import ctypes
from typing import Any

VERBS_LIBRARY, MLX5_LIBRARY = "libibverbs.so.1", "libmlx5.so.1"
ACCESS_GPU = 7
"""IBV_ACCESS_LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ, as NCCL registers GPU memory."""
_DEVX = 1  # MLX5DV_CONTEXT_FLAGS_DEVX
_UAR_TYPES = (0, 1 << 31)
"""MLX5DV_UAR_ALLOC_TYPE_BF and _NC_DEDICATED: NVSHMEM's IBGDA is content with either."""
_ENOSYS = 38
_REASONS = {1: "permission", 13: "permission", 95: "unsupported"}  # EPERM, EACCES, EOPNOTSUPP

Handle = Any
"""An opaque pointer, None when the call failed."""
_HANDLE = ctypes.c_void_p


def refusal(call: str, number: int) -> dict[str, str]:
    """The error of a call that had to work before the one that is asked about."""
    return {"error": _REASONS.get(number, "failed"), "detail": f"{call}: errno {number}"}


def _outcome(call: str, handle: Handle) -> Any:  # noqa: ANN401 - errno, or an error
    """0, or errno. A failure that leaves errno at 0 must not pass for a success."""
    if handle:
        return 0
    return ctypes.get_errno() or {"error": "failed", "detail": f"{call} failed without errno"}


class _DeviceAttr(ctypes.Structure):
    """struct ibv_device_attr. `reserved` is beyond its end: a library that knows more must not write past the buffer."""

    _fields_ = (
        ("fw_ver", ctypes.c_char * 64),
        *((name, ctypes.c_uint64) for name in ("node_guid", "sys_image_guid", "max_mr_size", "page_size_cap")),
        *((name, ctypes.c_uint32) for name in ("vendor_id", "vendor_part_id", "hw_ver")),
        ("max_qp", ctypes.c_int),
        ("max_qp_wr", ctypes.c_int),
        ("device_cap_flags", ctypes.c_uint),
        *((name, ctypes.c_int) for name in ("max_sge", "max_sge_rd", "max_cq", "max_cqe", "max_mr", "max_pd")),
        *((name, ctypes.c_int) for name in ("max_qp_rd_atom", "max_ee_rd_atom", "max_res_rd_atom")),
        *((name, ctypes.c_int) for name in ("max_qp_init_rd_atom", "max_ee_init_rd_atom", "atomic_cap")),
        *((name, ctypes.c_int) for name in ("max_ee", "max_rdd", "max_mw", "max_raw_ipv6_qp", "max_raw_ethy_qp")),
        *((name, ctypes.c_int) for name in ("max_mcast_grp", "max_mcast_qp_attach", "max_total_mcast_qp_attach")),
        *((name, ctypes.c_int) for name in ("max_ah", "max_fmr", "max_map_per_fmr")),
        *((name, ctypes.c_int) for name in ("max_srq", "max_srq_wr", "max_srq_sge")),
        ("max_pkeys", ctypes.c_uint16),
        ("local_ca_ack_delay", ctypes.c_uint8),
        ("phys_port_cnt", ctypes.c_uint8),
        ("reserved", ctypes.c_uint8 * 64),
    )


class _PortAttr(ctypes.Structure):
    """Begin of struct ibv_port_attr. The exported ibv_query_port fills the fields up to `flags`, 48 bytes; `reserved` is room
    for them and for more."""

    _fields_ = (
        ("state", ctypes.c_int),
        ("max_mtu", ctypes.c_int),
        ("active_mtu", ctypes.c_int),
        ("gid_tbl_len", ctypes.c_int),
        ("reserved", ctypes.c_uint8 * 112),
    )


class Verbs:
    """libibverbs.so.1. Raises OSError when it is not there."""

    def __init__(self) -> None:
        self._lib: Any = ctypes.CDLL(VERBS_LIBRARY, use_errno=True)
        self._lib.ibv_get_device_list.restype = ctypes.POINTER(_HANDLE)
        self._lib.ibv_get_device_list.argtypes = [ctypes.POINTER(ctypes.c_int)]
        self._lib.ibv_free_device_list.argtypes = [ctypes.POINTER(_HANDLE)]
        self._lib.ibv_get_device_name.restype = ctypes.c_char_p
        self._lib.ibv_open_device.restype = self._lib.ibv_alloc_pd.restype = _HANDLE
        for name in ("get_device_name", "open_device", "close_device", "alloc_pd", "dealloc_pd", "dereg_mr"):
            getattr(self._lib, f"ibv_{name}").argtypes = [_HANDLE]
        self._lib.ibv_query_device.argtypes = [_HANDLE, ctypes.POINTER(_DeviceAttr)]
        self._lib.ibv_query_port.argtypes = [_HANDLE, ctypes.c_uint8, ctypes.POINTER(_PortAttr)]

    def listed(self) -> Any:  # noqa: ANN401 - the list for `free_list` and (handle, name) of each device, or an error
        """Devices; the handles are good until the list is freed. ENOSYS is a kernel without RDMA: no devices."""
        count = ctypes.c_int(0)
        ctypes.set_errno(0)
        found = self._lib.ibv_get_device_list(ctypes.byref(count))
        if not found:
            number = ctypes.get_errno()
            return (None, []) if number == _ENOSYS else refusal("ibv_get_device_list", number)
        return found, [(found[i], self._name(found[i])) for i in range(count.value)]

    def _name(self, device: Handle) -> str:
        return (self._lib.ibv_get_device_name(device) or b"").decode("utf-8", "replace")

    def free_list(self, found: Any) -> None:  # noqa: ANN401 - ctypes
        """Gives back what `listed` gave."""
        if found:
            self._lib.ibv_free_device_list(found)

    def open(self, device: Handle) -> tuple[Handle, int]:
        """Context of a device, and errno when there is none."""
        ctypes.set_errno(0)
        context = self._lib.ibv_open_device(device)
        return context, 0 if context else ctypes.get_errno()

    def close(self, context: Handle) -> None:
        """Closes a context, also one that libmlx5 opened."""
        self._lib.ibv_close_device(context)

    def attributes(self, context: Handle) -> dict[str, Any]:
        """Limits of a device as ibv_query_device tells them, numbers of verbs.h; or an error."""
        found = _DeviceAttr()
        number = self._lib.ibv_query_device(context, ctypes.byref(found))
        if number:
            return refusal("ibv_query_device", number)
        names = ("atomic_cap", "max_qp", "max_qp_rd_atom", "phys_port_cnt")
        return {name: getattr(found, name) for name in names}

    def port(self, context: Handle, port: int) -> dict[str, Any]:
        """MTUs of a port, as codes of enum ibv_mtu; or an error."""
        found = _PortAttr()
        number = self._lib.ibv_query_port(context, port, ctypes.byref(found))
        if number:
            return refusal(f"ibv_query_port of port {port}", number)
        return {"port": port, "active_mtu": found.active_mtu, "max_mtu": found.max_mtu}

    def domain(self, context: Handle) -> tuple[Handle, int]:
        """Protection domain, and errno when there is none."""
        ctypes.set_errno(0)
        domain = self._lib.ibv_alloc_pd(context)
        return domain, 0 if domain else ctypes.get_errno()

    def free_domain(self, domain: Handle) -> None:
        """Gives a protection domain back."""
        self._lib.ibv_dealloc_pd(domain)

    def register(self, domain: Handle, num_bytes: int, address: int, descriptor: int, access: int) -> Any:  # noqa: ANN401
        """errno of ibv_reg_dmabuf_mr (0: it worked, and was undone), or an error."""
        call = getattr(self._lib, "ibv_reg_dmabuf_mr", None)
        if call is None:
            return {"error": "unsupported", "detail": "this libibverbs has no ibv_reg_dmabuf_mr"}
        call.restype = _HANDLE
        call.argtypes = [_HANDLE, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_int, ctypes.c_int]
        ctypes.set_errno(0)
        region = call(domain, 0, num_bytes, address, descriptor, access)
        found = _outcome("ibv_reg_dmabuf_mr", region)
        if region:
            self._lib.ibv_dereg_mr(region)
        return found


class _ContextAttr(ctypes.Structure):
    """struct mlx5dv_context_attr"""

    _fields_ = (("flags", ctypes.c_uint32), ("comp_mask", ctypes.c_uint64))


class Mlx5:
    """libmlx5.so.1. Raises OSError when it is not there, AttributeError when it is too old."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs
        self._lib: Any = ctypes.CDLL(MLX5_LIBRARY, use_errno=True)
        self._lib.mlx5dv_is_supported.restype = ctypes.c_bool
        self._lib.mlx5dv_is_supported.argtypes = [_HANDLE]
        self._lib.mlx5dv_open_device.restype = self._lib.mlx5dv_devx_alloc_uar.restype = _HANDLE
        self._lib.mlx5dv_open_device.argtypes = [_HANDLE, ctypes.POINTER(_ContextAttr)]
        self._lib.mlx5dv_devx_alloc_uar.argtypes = [_HANDLE, ctypes.c_uint32]
        self._lib.mlx5dv_devx_free_uar.argtypes = [_HANDLE]

    def uar_errno(self, device: Handle) -> Any:  # noqa: ANN401 - errno, or an error
        """errno of mlx5dv_devx_alloc_uar (0: it worked, and was undone) in a context opened for DevX.

        ibv_open_device would fall back to a context without DevX in silence, in which the doorbell page can be had and
        the queues cannot.
        """
        if not self._lib.mlx5dv_is_supported(device):
            return {"error": "unsupported", "detail": "mlx5dv_is_supported says no"}
        ctypes.set_errno(0)
        context = self._lib.mlx5dv_open_device(device, ctypes.byref(_ContextAttr(_DEVX, 0)))
        if not context:
            return refusal("mlx5dv_open_device for DevX", ctypes.get_errno())
        answers = []
        for kind in _UAR_TYPES:
            ctypes.set_errno(0)
            uar = self._lib.mlx5dv_devx_alloc_uar(context, kind)
            answers.append(_outcome("mlx5dv_devx_alloc_uar", uar))
            if uar:
                self._lib.mlx5dv_devx_free_uar(uar)
                break
        self._verbs.close(context)
        return 0 if answers[-1] == 0 else answers[0]
