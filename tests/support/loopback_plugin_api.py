"""The loopback plugin as NCCL calls it, from Python: version 14 of NCCL's RMA interface by ctypes (src/include/plugin/rma/rma_v14.h)."""

from __future__ import annotations

import ctypes
import time
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_bool, c_char_p, c_float, c_int, c_size_t, c_void_p
from ctypes import c_int16 as i16
from ctypes import c_uint32 as u32
from ctypes import c_uint64 as u64

HANDLE_BYTES = 128
HOST, CUDA = 1, 2
FORCE_STRONG_ORDER, NEVER_RESET = 1, 2
INCREMENT, ADD = 1, 2
SUCCESS, CUDA_ERROR, SYSTEM, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE, REMOTE = range(7)
WAIT_S = 20.0
# NCCL's logger takes further arguments; the plugin always gives one more, a text.
LOGGER = CFUNCTYPE(None, c_int, ctypes.c_ulong, c_char_p, c_int, c_char_p, c_char_p)


class Properties(Structure):
    """ncclNetProperties_v12_t."""

    _fields_ = (
        ("name", c_char_p),
        ("pciPath", c_char_p),
        ("guid", u64),
        ("ptrSupport", c_int),
        ("regIsGlobal", c_int),
        ("forceFlush", c_int),
        ("speed", c_int),
        ("port", c_int),
        ("latency", c_float),
        ("maxComms", c_int),
        ("maxRecvs", c_int),
        ("netDeviceType", c_int),
        ("netDeviceVersion", c_int),
        ("ndevs", c_int),
        ("devs", c_int * 8),
        ("maxP2pBytes", c_size_t),
        ("maxCollBytes", c_size_t),
        ("maxMultiRequestSize", c_int),
        ("railId", i16),
        ("planeId", i16),
    )


class Config(Structure):
    """ncclRmaConfig_v14_t."""

    _fields_ = (("nContexts", c_int), ("trafficClass", c_int))


_OUT = POINTER(c_void_p)


def _function(*arguments: object) -> object:
    return CFUNCTYPE(c_int, *arguments)  # type: ignore[arg-type]


class Table(Structure):
    """ncclRma_v14_t."""

    _fields_ = (
        ("name", c_char_p),
        ("init", _function(_OUT, u64, LOGGER)),
        ("devices", _function(POINTER(c_int))),
        ("getProperties", _function(c_int, POINTER(Properties))),
        ("listen", _function(c_void_p, c_int, c_void_p, _OUT)),
        ("connect", _function(c_void_p, _OUT, c_int, c_int, c_void_p, _OUT)),
        ("createContext", _function(c_void_p, POINTER(Config), _OUT)),
        ("regMrSym", _function(c_void_p, c_void_p, c_size_t, c_int, u64, _OUT)),
        ("regMrSymDmaBuf", _function(c_void_p, c_void_p, c_size_t, c_int, u64, c_int, u64, _OUT)),
        ("deregMrSym", _function(c_void_p, c_void_p)),
        ("destroyContext", _function(c_void_p)),
        ("closeColl", _function(c_void_p)),
        ("closeListen", _function(c_void_p)),
        ("iput", _function(c_void_p, c_int, u64, c_void_p, c_size_t, u64, c_void_p, u32, _OUT)),
        (
            "iputSignal",
            _function(
                c_void_p,
                c_int,
                u64,
                c_void_p,
                c_size_t,
                u64,
                c_void_p,
                u32,
                u64,
                c_void_p,
                u64,
                u32,
                c_bool,
                _OUT,
            ),
        ),
        ("iget", _function(c_void_p, c_int, u64, c_void_p, c_size_t, u64, c_void_p, u32, _OUT)),
        ("iflush", _function(c_void_p, c_int, c_void_p, u32, _OUT)),
        ("test", _function(c_void_p, c_void_p, POINTER(c_int))),
        ("rmaProgress", _function(c_void_p)),
        ("queryLastError", _function(c_void_p, POINTER(c_bool))),
        ("finalize", _function(c_void_p)),
    )


class PluginError(Exception):
    """A call that was not answered with ncclSuccess."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: {code}")
        self.call, self.code = call, code


class Plugin:
    """The library, initialised. `log`: what it told NCCL's logger, as (level, text)."""

    def __init__(self, path: str) -> None:
        self.table = Table.in_dll(ctypes.CDLL(path), "ncclRmaPlugin_v14")
        self.log: list[tuple[int, str]] = []
        self._logger = LOGGER(lambda level, _, __, ___, ____, text: self.log.append((level, text.decode())))
        self.instance = c_void_p()
        self.call("init", byref(self.instance), 1, self._logger)

    def call(self, name: str, *arguments: object) -> None:
        """Raises PluginError."""
        code = getattr(self.table, name)(*arguments)
        if code != SUCCESS:
            raise PluginError(name, code)

    def made(self, name: str, *arguments: object) -> int:
        """The pointer that the call leaves in its last argument."""
        out = c_void_p()
        self.call(name, *arguments, byref(out))
        return out.value or 0

    def warnings(self) -> list[str]:
        """Texts of level WARN."""
        return [text for level, text in self.log if level == 2]

    def listen(self) -> tuple[int, bytes]:
        """(listener, handle)."""
        handle = ctypes.create_string_buffer(HANDLE_BYTES)
        listener = self.made("listen", self.instance, 0, handle)
        return listener, handle.raw

    def connect(self, listener: int, handles: list[bytes], rank: int) -> int:
        """The collective."""
        buffers = [ctypes.create_string_buffer(handle, HANDLE_BYTES) for handle in handles]
        pointers = (c_void_p * len(buffers))(*[ctypes.addressof(buffer) for buffer in buffers])
        return self.made("connect", self.instance, pointers, len(handles), rank, listener)

    def context(self, collective: int, num_contexts: int = 1) -> int:
        """A context of the collective."""
        return self.made("createContext", collective, byref(Config(num_contexts, -1)))

    def done(self, collective: int, request: int) -> bool:
        """Whether the request is complete. Raises PluginError."""
        found = c_int(-1)
        self.call("test", collective, request, byref(found))
        return bool(found.value)

    def has_error(self, context: int) -> bool:
        """queryLastError."""
        found = c_bool(False)
        self.call("queryLastError", context, byref(found))
        return found.value

    def wait(self, collective: int, context: int, *requests: int) -> None:
        """Progress until all requests are complete. Raises PluginError, and TimeoutError after some seconds."""
        left = set(requests)
        end = time.monotonic() + WAIT_S
        while left:
            self.table.rmaProgress(context)
            left -= {request for request in left if self.done(collective, request)}
            if time.monotonic() > end:
                raise TimeoutError(f"{len(left)} requests are not complete")
