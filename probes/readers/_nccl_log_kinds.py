"""What a line of a log of NCCL means for whoever looks for the cause of a failed or slow job: its kind, and the numbers
in it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal, NamedTuple

Weight = Literal["error", "note"]


class Kind(NamedTuple):
    kind: str
    weight: Weight
    needles: tuple[tuple[str, ...], ...]
    """Alternatives; every word of one alternative stands in the text, in lower case."""


def _kind(kind: str, weight: Weight, *needles: str) -> Kind:
    return Kind(kind, weight, tuple(tuple(needle.split("&")) for needle in needles))


_KINDS = (
    _kind("too_many_open_files", "error", "too many open files"),
    _kind("ib_completion_error", "error", "got completion&vendor", "got completion&status", "got completion with error"),
    _kind("ib_async_event", "error", "async event", "async fatal event"),
    _kind("ib_device_incompatible", "error", "device is incompatible with the local"),
    _kind("duplicate_gpu", "error", "duplicate gpu detected"),
    _kind("version_mismatch", "error", "mismatched nccl version", "nccl version mismatch", "incompatible nccl version"),
    _kind("nvls_failed", "error", "nvlink sharp&failed", "multicast&failed", "nvls&failed", "cumulticast&fail"),
    _kind("cumem_failed", "error", "cumemcreate&fail", "cumemmap&fail", "cumemimport&fail", "cumemexport&fail",
          "cumemsetaccess&fail", "cumemgethandle&fail", "cumemaddressreserve&fail"),
    _kind("dmabuf_registration_failed", "error", "ibv_reg_dmabuf_mr&fail", "dmabuf&register&fail", "dma-buf&fail"),
    _kind("ibv_reg_mr_failed", "error", "ibv_reg_mr&fail"),
    _kind("ibv_modify_qp_failed", "error", "ibv_modify_qp&fail"),
    _kind("libibverbs_missing", "error", "failed to open libibverbs", "libibverbs.so&cannot open"),
    _kind("ibv_call_failed", "error", "call to ibv_&fail", "call to mlx5dv_&fail", "ibv_&failed with"),
    _kind("shared_memory_failed", "error", "dev/shm&fail", "dev/shm&error", "shared memory segment&error",
          "shared memory&failed", "posix_fallocate&failed"),
    _kind("no_socket_interface", "error", "no socket interface found", "no interface found", "no usable listening interface",
          "no ip interface found"),
    _kind("unhandled_cuda_error", "error", "unhandled cuda error", "ncclunhandledcudaerror"),
    _kind("cuda_failure", "error", "cuda failure", "cuda driver error", "cuda error"),
    _kind("out_of_memory", "error", "failed to cuda&alloc", "failed to malloc", "failed to allocate", "out of memory"),
    _kind("gdrcopy_unavailable", "note", "gdrcopy&fail", "gdr handle&fail", "libgdrapi&"),
    _kind("net_plugin_not_found", "note", "net/plugin&could not find: libnccl-net", "no plugin found (libnccl-net",
          "net/plugin&no plugin found"),
    _kind("plugin_not_found", "note", "/plugin: could not find", "/plugin : could not find", "plugin load&returned",
          "no plugin found"),
    _kind("net_plugin_failed", "note", "failed to initialize net plugin", "failed to load&net plugin"),
    _kind("ib_no_device", "note", "net/ib&no device found"),
    _kind("symmetric_memory_unsupported", "note", "symmetric memory is not supported", "symmetric memory&not available",
          "symmetric&not enabled"),
    _kind("gin_failed", "error", "gin: devcomm&fail", "gin strong signals", "net/ib/gin&fail", "ncclgin&fail"),
    _kind("gin_unavailable", "note", "gin/plugin&fail", "any gin plugin", "the gin plugin&not support", "gin/plugin&skipping"),
    _kind("cumem_disabled", "note", "cumem&disabl", "cumem&not supported", "cumem&not enabled", "cumem&unsupported"),
    _kind("gdr_disabled", "note", "gpu direct rdma disabled", "gpu direct rdma (&disabled", "gdr&disabled",
          "gpudirect&disabled", "gdr 0"),
    _kind("mnnvl_unavailable", "note", "mnnvl&not ", "mnnvl&disabled", "mnnvl&fail", "mnnvl&unsupported"),
    _kind("nvls_unavailable", "note", "nvls multicast support is not available", "nvls&disabled", "nvls&not supported"),
    _kind("user_buffer_not_registered", "note", "regist&buffer&fail", "regist&buffer&not ", "user buffer&not "),
    _kind("relaxed_ordering_off", "note", "relaxed ordering&not ", "relaxed ordering&disabled", "relaxed ordering&off"),
    _kind("iommu", "note", "iommu"),
    _kind("numa_balancing", "note", "numa auto balancing"),
    _kind("connect_retried", "note", "connect&retrying"),
    _kind("peer_finished", "note", "[service thread]&connection closed by localrank"),
    _kind("watchdog_timeout", "error", "collective operation timeout", "watchdog&timed out", "watchdog&timeout"),
    _kind("watchdog_error", "error", "watchdog&exception", "watchdog&terminated", "watchdog&error", "watchdog got stuck"),
    _kind("connection_refused", "error", "connection refused"),
    _kind("connection_timed_out", "error", "connection timed out", "timeout waiting for&connect", "connect&timed out",
          "bootstrap&timeout", "bootstrap&timed out", "socket&timed out"),
    _kind("host_unreachable", "error", "no route to host", "network is unreachable", "host is unreachable"),
    _kind("connection_closed", "error", "connection closed by", "connection reset by peer", "broken pipe",
          "remote process exited", "ncclremoteerror"),
    _kind("socket_failed", "error", "call to connect&", "call to bind&", "call to listen&", "call to accept&", "call to recv&",
          "call to send&", "call to socket&", "call to poll&", "call to getaddrinfo&", "socketstartconnect&",
          "socketpollconnect&", "socketprogress&", "socketfinalize&", "wrong magic"),
    _kind("bootstrap_failed", "error", "bootstrap&fail", "bootstrap&error"),
    _kind("unhandled_system_error", "error", "unhandled system error", "ncclsystemerror"),
    _kind("aborted", "error", "abort complete", "communicator was aborted", "comm was aborted", "ncclcommabort"),
    _kind("message_truncated", "error", "message truncated", "truncated : received"),
    _kind("libfabric_failed", "error", "net/ofi&failed", "net/ofi&unable to"),
    _kind("invalid_setting", "error", "invalid value&nccl_", "nccl_&invalid value"),
    _kind("invalid_usage", "error", "invalid usage", "ncclinvalidusage"),
    _kind("invalid_argument", "error", "ncclinvalidargument", "invalid argument"),
    _kind("internal_error", "error", "ncclinternalerror", "internal error"),
)  # fmt: skip

_WC_STATUS = (
    "SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR",
    "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR",
    "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR", "INV_EEC_STATE_ERR",
    "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR", "TM_ERR", "TM_RNDV_INCOMPLETE",
)  # fmt: skip

_ERRNO: dict[int, tuple[str, str]] = {
    1: ("EPERM", "operation not permitted"), 2: ("ENOENT", "no such file or directory"), 5: ("EIO", "input/output error"),
    11: ("EAGAIN", "resource temporarily unavailable"), 12: ("ENOMEM", "cannot allocate memory"),
    13: ("EACCES", "permission denied"), 14: ("EFAULT", "bad address"), 16: ("EBUSY", "device or resource busy"),
    19: ("ENODEV", "no such device"), 22: ("EINVAL", "invalid argument"), 24: ("EMFILE", "too many open files"),
    28: ("ENOSPC", "no space left on device"), 32: ("EPIPE", "broken pipe"), 38: ("ENOSYS", "function not implemented"),
    61: ("ENODATA", "no data available"), 93: ("EPROTONOSUPPORT", "protocol not supported"),
    95: ("EOPNOTSUPP", "operation not supported"), 97: ("EAFNOSUPPORT", "address family not supported"),
    98: ("EADDRINUSE", "address already in use"), 99: ("EADDRNOTAVAIL", "cannot assign requested address"),
    100: ("ENETDOWN", "network is down"), 101: ("ENETUNREACH", "network is unreachable"),
    103: ("ECONNABORTED", "software caused connection abort"), 104: ("ECONNRESET", "connection reset by peer"),
    110: ("ETIMEDOUT", "connection timed out"), 111: ("ECONNREFUSED", "connection refused"),
    113: ("EHOSTUNREACH", "no route to host"), 121: ("EREMOTEIO", "remote i/o error"),
}  # fmt: skip
"""Numbers, names and texts of Linux."""

_CUDA: dict[int, tuple[str, str]] = {
    1: ("INVALID_VALUE", "invalid argument"), 2: ("OUT_OF_MEMORY", "out of memory"), 3: ("NOT_INITIALIZED", "initialization error"),
    35: ("INSUFFICIENT_DRIVER", "driver version is insufficient"), 46: ("DEVICE_UNAVAILABLE", "busy or unavailable"),
    100: ("NO_DEVICE", "no cuda-capable device"), 101: ("INVALID_DEVICE", "invalid device ordinal"),
    201: ("INVALID_CONTEXT", "invalid device context"), 214: ("ECC_UNCORRECTABLE", "uncorrectable ecc error"),
    217: ("PEER_ACCESS_UNSUPPORTED", "peer access is not supported"),
    220: ("NVLINK_UNCORRECTABLE", "uncorrectable nvlink error"), 304: ("OPERATING_SYSTEM", "os call failed"),
    400: ("INVALID_HANDLE", "invalid resource handle"), 401: ("ILLEGAL_STATE", "cannot be performed in the present state"),
    700: ("ILLEGAL_ADDRESS", "illegal memory access"), 702: ("LAUNCH_TIMEOUT", "launch timed out"),
    715: ("ILLEGAL_INSTRUCTION", "illegal instruction"), 719: ("LAUNCH_FAILED", "unspecified launch failure"),
    800: ("NOT_PERMITTED", "operation not permitted"), 801: ("NOT_SUPPORTED", "operation not supported"),
    802: ("SYSTEM_NOT_READY", "system not yet initialized"), 803: ("SYSTEM_DRIVER_MISMATCH", "unsupported display driver"),
    804: ("COMPAT_NOT_SUPPORTED", "forward compatibility was attempted"), 999: ("UNKNOWN", "unknown error"),
}  # fmt: skip

_PEER = re.compile(r"\bpeer ([^\s<]{1,120})<(\d{1,10})>", re.ASCII)
_REMOTE = re.compile(r"\b(?:to|from|address|peer) ([^\s<]{1,120})<(\d{1,10})>", re.ASCII)
_NUMBERS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("status", re.compile(r"\b(?:status=|error )(?:[A-Z_]{1,40}\()?(\d{1,6})\b", re.ASCII)),
    ("opcode", re.compile(r"\bopcode[= ](?:[A-Z_]{1,40}\()?(\d{1,10})\b", re.ASCII)),
    ("length", re.compile(r"\blen[= ](\d{1,12})\b", re.ASCII)),
    ("vendor_err", re.compile(r"\bvendor[_ ]err[= ](\d{1,10})\b", re.ASCII)),
)
_WORDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("request", re.compile(r"(?:\breq_?[tT]ype=|vendor[_ ]err[= ]\d{1,10} \()(\w{1,20})", re.ASCII)),
    ("local_gid", re.compile(r"\blocal_?[gG](?:id|ID)s?[ =]?([0-9a-fA-F:.]{2,64})", re.ASCII)),
    ("remote_gid", re.compile(r"\bremote_?[gG](?:id|ID)s?[ =]?([0-9a-fA-F:.]{2,64})", re.ASCII)),
    ("hca", re.compile(r"\bhca(?:_name)?[ =]([\w.+\-]{1,64})", re.ASCII)),
)
_ERRNO_NUMBER = re.compile(
    r"\berrno:?[ =](\d{1,3})\b|\bfailed with (\d{1,3}) |\(errno (\d{1,3})\)|: [A-Z][\w /]{4,60} \((\d{1,3})\)",
    re.ASCII,
)
_CUDA_NUMBER = re.compile(r"\b(?:cuda failure|cuda error|cuda driver error|error)[ :=]{1,3}(\d{1,4})\b", re.ASCII)
_CALL = re.compile(r"\b((?:ibv|mlx5dv)_\w{2,40})", re.ASCII)
_ON_DEVICE = re.compile(r"\bon dev(?:ice)? ([\w.\-]{1,64})(?::\d{1,3})?", re.ASCII)
_IB_PORT = re.compile(r"NET/IB ?: ([\w.\-]{1,64}):(\d{1,3}) ", re.ASCII)
_VERSIONS = re.compile(r"\brank (\d{1,7}) version (\d{1,7}) rank (\d{1,7}) version (\d{1,7})", re.ASCII)
_DUPLICATE = re.compile(r"\brank (\d{1,7}) and rank (\d{1,7}) both on CUDA device ([0-9a-f]{1,12})", re.ASCII)
_SIZE = re.compile(r"\b(?:to|of size|size) (\d{1,18})\b", re.ASCII)
_CUDA_KINDS = ("cuda_failure", "nvls_failed", "cumem_failed", "unhandled_cuda_error", "out_of_memory")
_READ = 2000


_FLAT = tuple((words[0], words[1:], kind) for kind in _KINDS for words in kind.needles)


@lru_cache(maxsize=4096)
def _first(low: str) -> Kind | None:
    for word, more, kind in _FLAT:
        if word in low and (not more or all(other in low for other in more)):
            return kind
    return None


def kind_of(text: str, where: str = "") -> Kind | None:
    """The first kind that fits. A CUDA failure within the NVLS transport is one of NVLS, an unknown one in the GIN
    sources one of GIN."""
    found = _first(text[:_READ].lower())
    if found is not None and found.kind == "cuda_failure" and "nvls" in where:
        return Kind("nvls_failed", "error", ())
    if found is None and where.startswith("gin/"):
        return Kind("gin_failed", "error", ())
    return found


def _errno(text: str) -> dict[str, Any]:
    number = _ERRNO_NUMBER.search(text)
    low = text.lower()
    value = int(next(g for g in number.groups() if g)) if number else None
    if value is None:
        value = next((n for n, (_, words) in _ERRNO.items() if words in low), None)
    return {} if value is None else {"errno": value, "errno_name": _ERRNO[value][0] if value in _ERRNO else None}


def _cuda(text: str) -> dict[str, Any]:
    low = text.lower()
    number = _CUDA_NUMBER.search(low)
    value = int(number.group(1)) if number else next((n for n, (_, words) in _CUDA.items() if words in low), None)
    return (
        {} if value is None else {"cuda_error": value, "cuda_error_name": _CUDA[value][0] if value in _CUDA else None}
    )


def _completion(text: str) -> dict[str, Any]:
    detail: dict[str, Any] = {name: int(m.group(1)) for name, pattern in _NUMBERS if (m := pattern.search(text))}
    detail.update({name: m.group(1) for name, pattern in _WORDS if (m := pattern.search(text))})
    status = detail.get("status")
    if status is not None:
        detail["status_name"] = f"IBV_WC_{_WC_STATUS[status]}" if status < len(_WC_STATUS) else None
    return detail


def _named(kind: str, text: str) -> dict[str, Any]:
    if kind == "version_mismatch" and (found := _VERSIONS.search(text)):
        return {
            "ranks": [int(found.group(1)), int(found.group(3))],
            "versions": [int(found.group(2)), int(found.group(4))],
        }
    if kind == "duplicate_gpu" and (found := _DUPLICATE.search(text)):
        return {"ranks": [int(found.group(1)), int(found.group(2))], "bus_id": found.group(3)}
    if kind == "ib_async_event" and (found := _IB_PORT.search(text)):
        return {"hca": found.group(1)}
    return {}


def detail_of(kind: str, text: str) -> dict[str, Any]:
    """Numbers and names that a warning of this kind holds; keys are field names of a warning."""
    text = text[:_READ]
    detail = _named(kind, text)
    if peer := _PEER.search(text) or _REMOTE.search(text):
        detail.update(peer=peer.group(1), peer_port=int(peer.group(2)))
    if kind == "ib_completion_error":
        return detail | _completion(text)
    if kind in _CUDA_KINDS:
        detail.update(_cuda(text))
    elif kind != "other":
        detail.update(_errno(text))
    if call := _CALL.search(text):
        detail["call"] = call.group(1)
    if "_" in detail.get("call", "") and (device := _ON_DEVICE.search(text)):
        detail["hca"] = device.group(1)
    if kind in ("shared_memory_failed", "nvls_failed", "cumem_failed", "out_of_memory") and (
        size := _SIZE.search(text)
    ):
        detail["size"] = int(size.group(1))
    return detail
