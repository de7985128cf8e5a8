// NCCL, found at run time: the functions of the one library that the process uses. The headers give types and versions.
#pragma once

#include <nccl.h>
#include <nccl_device.h>

#include <stdexcept>
#include <string>

namespace epctl::host {

// A call that failed. `code` is NCCL's, or -1 when the call could not be made at all.
class NcclError : public std::runtime_error {
  public:
    NcclError(std::string call, int code, const std::string& text)
        : std::runtime_error(call + ": " + text), call(std::move(call)), code(code) {}

    std::string call;
    int code;
};

struct Nccl {
    decltype(&ncclGetVersion) GetVersion;
    decltype(&ncclGetErrorString) GetErrorString;
    decltype(&ncclGetLastError) GetLastError;
    decltype(&ncclGetUniqueId) GetUniqueId;
    decltype(&ncclCommInitRankConfig) CommInitRankConfig;
    decltype(&ncclCommDestroy) CommDestroy;
    decltype(&ncclCommAbort) CommAbort;
    decltype(&ncclCommGetAsyncError) CommGetAsyncError;
    decltype(&ncclCommCount) CommCount;
    decltype(&ncclCommUserRank) CommUserRank;
    decltype(&ncclCommQueryProperties) CommQueryProperties;
    decltype(&ncclMemAlloc) MemAlloc;
    decltype(&ncclMemFree) MemFree;
    decltype(&ncclCommWindowRegister) CommWindowRegister;
    decltype(&ncclCommWindowDeregister) CommWindowDeregister;
    decltype(&ncclGetLsaDevicePointer) GetLsaDevicePointer;
    decltype(&ncclDevCommCreate) DevCommCreate;
    decltype(&ncclDevCommDestroy) DevCommDestroy;
    ncclTeam_t (*TeamLsa)(ncclComm_t);
};

// Loads the library once; a later call with another path fails. Throws NcclError.
const Nccl& load_nccl(const std::string& path);

// The loaded library. Throws NcclError before load_nccl.
const Nccl& nccl();

// Throws NcclError that names `call` unless `code` is success.
void check(const Nccl& api, ncclResult_t code, const char* call, ncclComm_t comm = nullptr);

}  // namespace epctl::host
