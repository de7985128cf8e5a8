#include "driver.hpp"

#include <dlfcn.h>

#include <atomic>
#include <mutex>
#include <string>

#include "report.hpp"

namespace epctl::loopback {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

template <class Function>
void find(void* library, const char* name, Function& function) {
    void* const symbol = dlsym(library, name);
    if (symbol == nullptr)
        throw Failure(kSystemError, std::string(kLibrary) + " has no " + name + ": the driver is too old");
    function = reinterpret_cast<Function>(symbol);
}

void load(Driver& api) {
    // Never closed: the driver has threads of its own.
    void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* const why = dlerror();
        throw Failure(kSystemError, std::string("there is no CUDA driver: ") + (why != nullptr ? why : kLibrary));
    }
#define EPCTL_LOOPBACK_FIND(name, parameters) find(library, #name, api.name);
    EPCTL_LOOPBACK_DRIVER(EPCTL_LOOPBACK_FIND)
#undef EPCTL_LOOPBACK_FIND
    const CUresult code = api.cuInit(0);
    if (code != kCudaSuccess) throw Failure(kCudaError, "cuInit: error " + std::to_string(code));
}

std::string described(CUresult code, const char* call) {
    const char* text = nullptr;
    if (driver().cuGetErrorString(code, &text) != kCudaSuccess || text == nullptr) text = "the driver does not know it";
    return std::string(call) + ": " + error_name(code) + " (" + std::to_string(code) + "): " + text;
}

}  // namespace

const Driver& driver() {
    // Used several times for each request: the lock is only for the first call.
    static Driver api;
    static std::atomic<bool> loaded{false};
    static std::mutex mutex;
    if (loaded.load(std::memory_order_acquire)) return api;
    const std::lock_guard<std::mutex> guard(mutex);
    if (!loaded.load(std::memory_order_relaxed)) {
        load(api);
        loaded.store(true, std::memory_order_release);
    }
    return api;
}

const char* error_name(CUresult code) {
    const char* name = nullptr;
    return driver().cuGetErrorName(code, &name) == kCudaSuccess && name != nullptr ? name : "unknown error";
}

void check(CUresult code, const char* call) {
    if (code != kCudaSuccess) throw Failure(kCudaError, described(code, call));
}

void check_quietly(CUresult code, const char* call) {
    if (code != kCudaSuccess) info(described(code, call));
}

}  // namespace epctl::loopback
