// The CUDA driver, found at run time: the plugin loads and listens on a machine that has no GPU.
//
// Only the driver, no CUDA runtime: a second runtime beside PyTorch's would have a current device and modules of its
// own, and its lazy loading could wait for a kernel that spins. The primary context is the one that NCCL and PyTorch
// use as well.
#pragma once

#include <cstddef>
#include <cstdint>

namespace epctl::loopback {

// Declared here and not taken from cuda.h, so that the plugin needs no toolkit but for its kernel. A test compares
// them.
using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmemGenericAllocationHandle = unsigned long long;

struct CUmemAccessDesc {
    int location_type;
    int location_id;
    int flags;
};

constexpr CUresult kCudaSuccess = 0;
constexpr CUresult kCudaNotReady = 600;
constexpr int kAttribute64BitMemOps = 122;  // CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
constexpr int kPosixFileDescriptor = 1;     // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
constexpr int kLocationDevice = 1;          // CU_MEM_LOCATION_TYPE_DEVICE
constexpr int kReadWrite = 3;               // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
constexpr unsigned kStreamNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
constexpr int kCaptureRelaxed = 2;          // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr unsigned kEventNoTiming = 2;      // CU_EVENT_DISABLE_TIMING
constexpr unsigned kHostPortable = 1;       // CU_MEMHOSTALLOC_PORTABLE
constexpr unsigned kHostMapped = 2;         // CU_MEMHOSTALLOC_DEVICEMAP

// Name, parameters. One list: the table, the search and the comparison with cuda.h are made from it.
#define EPCTL_LOOPBACK_DRIVER(X)                                                                                      \
    X(cuInit, (unsigned flags))                                                                                       \
    X(cuGetErrorName, (CUresult code, const char** name))                                                             \
    X(cuGetErrorString, (CUresult code, const char** text))                                                           \
    X(cuCtxGetDevice, (CUdevice * device))                                                                            \
    X(cuDeviceGetAttribute, (int* value, int attribute, CUdevice device))                                             \
    X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                               \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                                                \
    X(cuCtxPushCurrent_v2, (CUcontext context))                                                                       \
    X(cuCtxPopCurrent_v2, (CUcontext * context))                                                                      \
    X(cuCtxGetStreamPriorityRange, (int* least, int* greatest))                                                       \
    X(cuThreadExchangeStreamCaptureMode, (int* mode))                                                                 \
    X(cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority))                                  \
    X(cuStreamDestroy_v2, (CUstream stream))                                                                          \
    X(cuStreamQuery, (CUstream stream))                                                                               \
    X(cuStreamWriteValue32_v2, (CUstream stream, CUdeviceptr address, unsigned value, unsigned flags))                \
    X(cuStreamWriteValue64_v2, (CUstream stream, CUdeviceptr address, std::uint64_t value, unsigned flags))           \
    X(cuEventCreate, (CUevent * event, unsigned flags))                                                               \
    X(cuEventDestroy_v2, (CUevent event))                                                                             \
    X(cuEventRecord, (CUevent event, CUstream stream))                                                                \
    X(cuEventQuery, (CUevent event))                                                                                  \
    X(cuMemHostAlloc, (void** data, std::size_t size, unsigned flags))                                                \
    X(cuMemFreeHost, (void* data))                                                                                    \
    X(cuMemcpyAsync, (CUdeviceptr target, CUdeviceptr source, std::size_t size, CUstream stream))                     \
    X(cuMemcpyDtoDAsync_v2, (CUdeviceptr target, CUdeviceptr source, std::size_t size, CUstream stream))              \
    X(cuMemcpyHtoDAsync_v2, (CUdeviceptr target, const void* source, std::size_t size, CUstream stream))              \
    X(cuMemGetAddressRange_v2, (CUdeviceptr * base, std::size_t* size, CUdeviceptr address))                          \
    X(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void* address))                            \
    X(cuMemExportToShareableHandle,                                                                                   \
      (void* shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags))                     \
    X(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle * handle, void* shareable, int type))             \
    X(cuMemRelease, (CUmemGenericAllocationHandle handle))                                                            \
    X(cuMemAddressReserve,                                                                                            \
      (CUdeviceptr * address, std::size_t size, std::size_t alignment, CUdeviceptr wanted, unsigned long long flags)) \
    X(cuMemAddressFree, (CUdeviceptr address, std::size_t size))                                                      \
    X(cuMemMap, (CUdeviceptr address, std::size_t size, std::size_t offset, CUmemGenericAllocationHandle handle,      \
                 unsigned long long flags))                                                                           \
    X(cuMemUnmap, (CUdeviceptr address, std::size_t size))                                                            \
    X(cuMemSetAccess, (CUdeviceptr address, std::size_t size, const CUmemAccessDesc* access, std::size_t count))      \
    X(cuModuleLoadData, (CUmodule * module, const void* image))                                                       \
    X(cuModuleUnload, (CUmodule module))                                                                              \
    X(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name))                                \
    X(cuLaunchKernel,                                                                                                 \
      (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,    \
       unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters, void** extra))

struct Driver {
#define EPCTL_LOOPBACK_MEMBER(name, parameters) CUresult(*name) parameters;
    EPCTL_LOOPBACK_DRIVER(EPCTL_LOOPBACK_MEMBER)
#undef EPCTL_LOOPBACK_MEMBER
};

// Loads and initialises the driver once. Throws Failure; a later call tries again.
const Driver& driver();

// CUDA_ERROR_OUT_OF_MEMORY.
const char* error_name(CUresult code);

// Throws Failure that names `call` unless `code` is success.
void check(CUresult code, const char* call);

// In destructors and at the end: an error that cannot be handled is logged.
void check_quietly(CUresult code, const char* call);

}  // namespace epctl::loopback
