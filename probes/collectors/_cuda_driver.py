"""The few calls of the CUDA driver that the active probe makes, through ctypes. Numbers are those of cuda.h (CUDA 13.0)."""

from __future__ import annotations

import ctypes
import os
from typing import Any

ATTRIBUTES = {
    "num_sms": 16,  # MULTIPROCESSOR_COUNT
    "posix_handles": 103,  # HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    "gdr_with_vmm": 110,  # GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
    "dma_buf": 124,  # DMA_BUF_SUPPORTED
    "fabric_handles": 128,  # HANDLE_TYPE_FABRIC_SUPPORTED
    "multicast": 132,  # MULTICAST_SUPPORTED
}
"""CU_DEVICE_ATTRIBUTE_…"""
HANDLE_POSIX, HANDLE_FABRIC = 1, 8
"""CU_MEM_HANDLE_TYPE_…"""
_PINNED, _LOCATION_DEVICE = 1, 1
_FABRIC_HANDLE_BYTES = 64
_RANGE_DMA_BUF_FD = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD


class CudaError(Exception):
    """A call that did not return CUDA_SUCCESS."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: {code}")
        self.call = call
        self.code = code


class _AllocationProp(ctypes.Structure):
    """CUmemAllocationProp: 32 bytes."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("win32_metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Driver:
    """libcuda.so.1. Raises OSError when it is not there; the calls raise CudaError."""

    def __init__(self) -> None:
        self._cuda: Any = ctypes.CDLL("libcuda.so.1")

    def _call(self, name: str, *args: Any) -> None:  # noqa: ANN401 - ctypes
        code = getattr(self._cuda, name)(*args)
        if code != 0:
            raise CudaError(name, code)

    def init(self) -> int:
        """Return code of cuInit."""
        return int(self._cuda.cuInit(0))

    def version(self) -> int:
        """CUDA version of the driver: 13000."""
        found = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(found))
        return found.value

    def count(self) -> int:
        """Visible devices."""
        found = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(found))
        return found.value

    def device(self, ordinal: int) -> int:
        """Handle of a device."""
        found = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(found), ctypes.c_int(ordinal))
        return found.value

    def uuid(self, device: int) -> Any:  # noqa: ANN401 - text, or an error
        """GPU-8-4-4-4-12, as NVML writes it."""
        raw = (ctypes.c_ubyte * 16)()
        name = "cuDeviceGetUuid_v2" if hasattr(self._cuda, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        try:
            self._call(name, ctypes.byref(raw), ctypes.c_int(device))
        except CudaError as error:
            return {"error": error.code, "detail": error.call}
        digits = bytes(raw).hex()
        return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def attribute(self, device: int, number: int) -> Any:  # noqa: ANN401 - a number, or an error
        """CUDA_ERROR_INVALID_VALUE (1) is an attribute that this driver is too old for."""
        found = ctypes.c_int()
        code = self._cuda.cuDeviceGetAttribute(ctypes.byref(found), ctypes.c_int(number), ctypes.c_int(device))
        if code == 1:
            return {"error": "unsupported", "detail": f"this driver does not know device attribute {number}"}
        return found.value if code == 0 else {"error": code, "detail": "cuDeviceGetAttribute"}

    def can_access(self, a: int, b: int) -> Any:  # noqa: ANN401 - a boolean, or an error
        """cuDeviceCanAccessPeer of two ordinals."""
        found = ctypes.c_int()
        try:
            self._call("cuDeviceCanAccessPeer", ctypes.byref(found), self.device(a), self.device(b))
        except CudaError as error:
            return {"error": error.code, "detail": error.call}
        return bool(found.value)

    def retain(self, ordinal: int) -> int:
        """Primary context of a device."""
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(self.device(ordinal)))
        return int(context.value or 0)

    def release(self, ordinal: int) -> None:
        """Gives the primary context back."""
        self._cuda.cuDevicePrimaryCtxRelease_v2(ctypes.c_int(self.device(ordinal)))

    def _use(self, context: int) -> None:
        self._call("cuCtxSetCurrent", ctypes.c_void_p(context))

    def allocate(self, context: int, num_bytes: int) -> int:
        """Address of device memory."""
        self._use(context)
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(num_bytes))
        return address.value

    def free(self, context: int, address: int) -> None:
        """Frees device memory."""
        self._use(context)
        self._cuda.cuMemFree_v2(ctypes.c_uint64(address))

    def dma_buf(self, address: int, num_bytes: int) -> int:
        """Descriptor of a DMA-BUF of device memory; both numbers are multiples of the host's page size."""
        descriptor = ctypes.c_int(-1)
        self._call(
            "cuMemGetHandleForAddressRange",
            ctypes.byref(descriptor),
            ctypes.c_uint64(address),
            ctypes.c_size_t(num_bytes),
            ctypes.c_int(_RANGE_DMA_BUF_FD),
            ctypes.c_uint64(0),
        )
        return descriptor.value

    def enable_peer(self, context: int, peer: int) -> None:
        """Lets `context` reach memory of `peer` without a detour over the host; a refusal shows in the copy."""
        self._use(context)
        self._cuda.cuCtxEnablePeerAccess(ctypes.c_void_p(peer), ctypes.c_uint(0))

    def write(self, context: int, address: int, content: bytes) -> None:
        """Host to device."""
        self._use(context)
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.c_char_p(content), ctypes.c_size_t(len(content)))
        self._call("cuCtxSynchronize")

    def copy_peer(self, target: int, target_context: int, origin: int, origin_context: int, num_bytes: int) -> None:
        """Device to device, waited for."""
        self._use(origin_context)
        self._call(
            "cuMemcpyPeer",
            ctypes.c_uint64(target),
            ctypes.c_void_p(target_context),
            ctypes.c_uint64(origin),
            ctypes.c_void_p(origin_context),
            ctypes.c_size_t(num_bytes),
        )
        for context in (origin_context, target_context):
            self._use(context)
            self._call("cuCtxSynchronize")

    def read(self, context: int, address: int, num_bytes: int) -> bytes:
        """Device to host."""
        self._use(context)
        content = ctypes.create_string_buffer(num_bytes)
        self._call("cuMemcpyDtoH_v2", content, ctypes.c_uint64(address), ctypes.c_size_t(num_bytes))
        return content.raw

    def export(self, ordinal: int, handle_type: int, num_bytes: int) -> int:
        """Return code of cuMemCreate, or else of cuMemExportToShareableHandle, for memory of at least `num_bytes`."""
        prop = _AllocationProp(_PINNED, handle_type, _LOCATION_DEVICE, self.device(ordinal), None)
        granularity = ctypes.c_size_t()
        code = self._cuda.cuMemGetAllocationGranularity(ctypes.byref(granularity), ctypes.byref(prop), ctypes.c_int(0))
        if code != 0:
            return int(code)
        step = max(granularity.value, 1)
        size = ctypes.c_size_t((num_bytes + step - 1) // step * step)
        handle = ctypes.c_uint64()
        code = self._cuda.cuMemCreate(ctypes.byref(handle), size, ctypes.byref(prop), ctypes.c_uint64(0))
        if code != 0:
            return int(code)
        shared: Any = ctypes.c_int(-1) if handle_type == HANDLE_POSIX else (ctypes.c_ubyte * _FABRIC_HANDLE_BYTES)()
        code = self._cuda.cuMemExportToShareableHandle(
            ctypes.byref(shared), handle, ctypes.c_int(handle_type), ctypes.c_uint64(0)
        )
        if code == 0 and handle_type == HANDLE_POSIX:
            os.close(shared.value)
        self._cuda.cuMemRelease(handle)
        return int(code)
