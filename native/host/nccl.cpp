#include "nccl.hpp"

#include <dlfcn.h>

#include <memory>
#include <mutex>

namespace epctl::host {
namespace {

std::mutex mutex;
std::unique_ptr<Nccl> loaded;
std::string loaded_path;

template <class Function>
void find(void* library, const char* name, const std::string& path, Function& function) {
    void* const symbol = dlsym(library, name);
    if (symbol == nullptr) throw NcclError(name, -1, path + " does not have it: this NCCL is too old");
    function = reinterpret_cast<Function>(symbol);
}

}  // namespace

const Nccl& load_nccl(const std::string& path) {
    const std::lock_guard<std::mutex> guard(mutex);
    if (loaded) {
        if (path != loaded_path) throw NcclError("dlopen", -1, loaded_path + " is loaded already, not " + path);
        return *loaded;
    }
    // Never closed: NCCL has threads of its own.
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* const why = dlerror();
        throw NcclError("dlopen", -1, why != nullptr ? why : path);
    }
    auto api = std::make_unique<Nccl>();
#define EPCTL_FIND(name) find(library, "nccl" #name, path, api->name)
    EPCTL_FIND(GetVersion);
    EPCTL_FIND(GetErrorString);
    EPCTL_FIND(GetLastError);
    EPCTL_FIND(GetUniqueId);
    EPCTL_FIND(CommInitRankConfig);
    EPCTL_FIND(CommDestroy);
    EPCTL_FIND(CommAbort);
    EPCTL_FIND(CommGetAsyncError);
    EPCTL_FIND(CommCount);
    EPCTL_FIND(CommUserRank);
    EPCTL_FIND(CommQueryProperties);
    EPCTL_FIND(MemAlloc);
    EPCTL_FIND(MemFree);
    EPCTL_FIND(CommWindowRegister);
    EPCTL_FIND(CommWindowDeregister);
    EPCTL_FIND(GetLsaDevicePointer);
    EPCTL_FIND(DevCommCreate);
    EPCTL_FIND(DevCommDestroy);
    EPCTL_FIND(TeamLsa);
#undef EPCTL_FIND
    loaded = std::move(api);
    loaded_path = path;
    return *loaded;
}

const Nccl& nccl() {
    const std::lock_guard<std::mutex> guard(mutex);
    if (!loaded) throw NcclError("load", -1, "no NCCL library is loaded yet");
    return *loaded;
}

void check(const Nccl& api, ncclResult_t code, const char* call, ncclComm_t comm) {
    if (code == ncclSuccess) return;
    std::string text = api.GetErrorString(code);
    const char* const last = api.GetLastError(comm);
    if (last != nullptr && *last != '\0') text += std::string(" (") + last + ")";
    throw NcclError(call, static_cast<int>(code), text);
}

}  // namespace epctl::host
