#include "driver.hpp"

#include <dlfcn.h>

#include <memory>
#include <mutex>

namespace epctl::host {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

template <class Function>
void find(void* library, const char* name, Function& function) {
    void* const symbol = dlsym(library, name);
    if (symbol == nullptr)
        throw DriverError(name, -1, "", std::string(kLibrary) + " does not have it: the driver is too old");
    function = reinterpret_cast<Function>(symbol);
}

std::unique_ptr<Driver> load() {
    // Never closed: the driver has threads of its own.
    void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* const why = dlerror();
        throw DriverError("dlopen", -1, "", why != nullptr ? why : kLibrary);
    }
    auto api = std::make_unique<Driver>();
#define EPCTL_FIND(name) find(library, #name, api->name)
    EPCTL_FIND(cuInit);
    EPCTL_FIND(cuDriverGetVersion);
    EPCTL_FIND(cuGetErrorName);
    EPCTL_FIND(cuGetErrorString);
    EPCTL_FIND(cuDeviceGetCount);
    EPCTL_FIND(cuDeviceGet);
    EPCTL_FIND(cuDevicePrimaryCtxRetain);
    EPCTL_FIND(cuDevicePrimaryCtxRelease_v2);
    EPCTL_FIND(cuCtxPushCurrent_v2);
    EPCTL_FIND(cuCtxPopCurrent_v2);
    EPCTL_FIND(cuModuleLoadData);
    EPCTL_FIND(cuModuleUnload);
    EPCTL_FIND(cuModuleGetFunction);
    EPCTL_FIND(cuFuncGetAttribute);
    EPCTL_FIND(cuFuncSetAttribute);
    EPCTL_FIND(cuLaunchKernel);
#undef EPCTL_FIND
    check(*api, api->cuInit(0), "cuInit");
    return api;
}

}  // namespace

const Driver& driver() {
    static std::mutex mutex;
    static std::unique_ptr<Driver> loaded;
    const std::lock_guard<std::mutex> guard(mutex);
    if (!loaded) loaded = load();
    return *loaded;
}

void check(const Driver& api, CUresult code, const char* call) {
    if (code == kSuccess) return;
    const char* name = nullptr;
    const char* text = nullptr;
    if (api.cuGetErrorName(code, &name) != kSuccess || name == nullptr) name = "unknown error";
    if (api.cuGetErrorString(code, &text) != kSuccess || text == nullptr) text = "the driver does not know it";
    throw DriverError(call, code, name, text);
}

}  // namespace epctl::host
