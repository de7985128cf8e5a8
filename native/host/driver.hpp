// The CUDA driver, found at run time: the extension builds and imports where there is no GPU, no driver and no toolkit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace epctl::host {

// Declared here and not taken from cuda.h: these few functions have kept their ABI since CUDA 4 (the _v2 ones), and so
// the extension does not depend on a toolkit.
using CUresult = int;
using CUdevice = int;
using CUdeviceptr = std::uint64_t;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;

constexpr CUresult kSuccess = 0;
constexpr int kMaxDynamicSharedBytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

// A call that failed. `code` is the driver's, or -1 when the call could not be made at all.
class DriverError : public std::runtime_error {
  public:
    DriverError(std::string call, CUresult code, const std::string& name, const std::string& text)
        : std::runtime_error(call + ": " + (code < 0 ? text : std::to_string(code) + " " + name + ": " + text)),
          call(std::move(call)),
          code(code),
          name(name) {}

    std::string call;
    CUresult code;
    std::string name;
};

struct Driver {
    CUresult (*cuInit)(unsigned flags);
    CUresult (*cuDriverGetVersion)(int* version);
    CUresult (*cuGetErrorName)(CUresult code, const char** name);
    CUresult (*cuGetErrorString)(CUresult code, const char** text);
    CUresult (*cuDeviceGetCount)(int* count);
    CUresult (*cuDeviceGet)(CUdevice* device, int ordinal);
    CUresult (*cuDevicePrimaryCtxRetain)(CUcontext* context, CUdevice device);
    CUresult (*cuDevicePrimaryCtxRelease_v2)(CUdevice device);
    CUresult (*cuCtxPushCurrent_v2)(CUcontext context);
    CUresult (*cuCtxPopCurrent_v2)(CUcontext* context);
    CUresult (*cuModuleLoadData)(CUmodule* module, const void* image);
    CUresult (*cuModuleUnload)(CUmodule module);
    CUresult (*cuModuleGetFunction)(CUfunction* function, CUmodule module, const char* name);
    CUresult (*cuFuncGetAttribute)(int* value, int attribute, CUfunction function);
    CUresult (*cuFuncSetAttribute)(CUfunction function, int attribute, int value);
    CUresult (*cuLaunchKernel)(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                               void** parameters, void** extra);
};

// Loads and initialises the driver once. Throws DriverError; a later call tries again.
const Driver& driver();

// Throws DriverError that names `call` unless `code` is success.
void check(const Driver& api, CUresult code, const char* call);

}  // namespace epctl::host
