// NCCL communicators, symmetric memory and device communicators for Python. Addresses, windows and communicators cross
// as integers, device communicators as the bytes that a kernel takes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "device.hpp"
#include "nccl.hpp"

namespace py = pybind11;

namespace epctl::host {
namespace {

std::uintptr_t number(const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer);
}

class Comm {
  public:
    Comm(const std::string& id, int num_ranks, int rank, int device_idx, int traffic_class)
        : api_(nccl()), device_(device_idx), owned_(true) {
        ncclUniqueId unique;
        if (id.size() != sizeof unique) throw NcclError("ncclCommInitRankConfig", -1, "the id has the wrong size");
        std::memcpy(&unique, id.data(), sizeof unique);
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        if (traffic_class >= 0) config.trafficClass = traffic_class;
        const Current current(device_);
        ncclResult_t code;
        {
            const py::gil_scoped_release released;
            code = api_.CommInitRankConfig(&comm_, num_ranks, unique, rank, &config);
        }
        check(api_, code, "ncclCommInitRankConfig", nullptr);
    }
    // Of somebody else, PyTorch for one, who destroys it.
    Comm(std::uintptr_t comm, int device_idx)
        : api_(nccl()), device_(device_idx), comm_(reinterpret_cast<ncclComm_t>(comm)), owned_(false) {
        int rank = 0;
        check(api_, api_.CommUserRank(comm_, &rank), "ncclCommUserRank", comm_);
    }
    ~Comm() = default;  // Destruction is collective: only destroy() or abort() do it.
    Comm(const Comm&) = delete;
    Comm& operator=(const Comm&) = delete;

    std::uintptr_t address() const { return number(comm_); }

    py::dict properties() const {
        ncclCommProperties_t found = NCCL_COMM_PROPERTIES_INITIALIZER;
        call("ncclCommQueryProperties", [&] { return api_.CommQueryProperties(live(), &found); });
        py::list types;
        for (int type = 0; type < NCCL_GIN_MAX_TYPES; ++type)
            if (type > 0 && found.ginSupport[type]) types.append(type);
        const ncclTeam_t lsa = api_.TeamLsa(live());
        py::dict told;
        told["rank"] = found.rank;
        told["num_ranks"] = found.nRanks;
        told["device_idx"] = found.cudaDev;
        told["nvml_idx"] = found.nvmlDev;
        told["device_api"] = found.deviceApiSupport;
        told["multimem"] = found.multimemSupport;
        told["gin_type"] = static_cast<int>(found.ginType);
        told["railed_gin_type"] = static_cast<int>(found.railedGinType);
        told["gin_types"] = types;
        told["gin_connection"] = static_cast<int>(found.ginConnectionType);
        told["gin_min_stride"] = found.ginMinStride;
        told["num_lsa_teams"] = found.nLsaTeams;
        told["host_rma"] = found.hostRmaSupport;
        told["comm_hash"] = found.commHash;
        told["lsa_rank"] = lsa.rank;
        told["lsa_size"] = lsa.nRanks;
        return told;
    }

    std::uintptr_t allocate(std::size_t num_bytes) {
        void* memory = nullptr;
        call("ncclMemAlloc", [&] { return api_.MemAlloc(&memory, num_bytes); });
        return number(memory);
    }

    void free(std::uintptr_t memory) {
        call("ncclMemFree", [&] { return api_.MemFree(reinterpret_cast<void*>(memory)); });
    }

    // Collective.
    std::uintptr_t add_window(std::uintptr_t memory, std::size_t num_bytes, int flags) {
        ncclWindow_t window = nullptr;
        call("ncclCommWindowRegister", [&] {
            return api_.CommWindowRegister(live(), reinterpret_cast<void*>(memory), num_bytes, &window, flags);
        });
        // NCCL gives no window where symmetric memory is not supported, and says success.
        if (window == nullptr)
            throw NcclError("ncclCommWindowRegister", -1,
                            "NCCL made no window: symmetric memory is not supported here");
        return number(window);
    }

    void remove_window(std::uintptr_t window) {
        call("ncclCommWindowDeregister",
             [&] { return api_.CommWindowDeregister(live(), reinterpret_cast<ncclWindow_t>(window)); });
    }

    std::uintptr_t lsa_address(std::uintptr_t window, std::size_t offset, int lsa_rank) const {
        void* address = nullptr;
        call("ncclGetLsaDevicePointer", [&] {
            return api_.GetLsaDevicePointer(reinterpret_cast<ncclWindow_t>(window), offset, lsa_rank, &address);
        });
        return number(address);
    }

    // Collective. The bytes are the argument that kernels take.
    py::bytes add_device_comm(int gin_type, int connection, int num_contexts, int num_signals, int num_counters,
                              int queue_depth, int traffic_class, bool strong_signals, int num_world_barriers) {
        ncclDevCommRequirements_t wanted = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
        wanted.ginType = static_cast<ncclGinType_t>(gin_type);
        wanted.ginConnectionType = static_cast<ncclGinConnectionType_t>(connection);
        wanted.ginContextCount = num_contexts;
        wanted.ginSignalCount = num_signals;
        wanted.ginCounterCount = num_counters;
        wanted.ginQueueDepth = queue_depth;
        if (traffic_class >= 0) wanted.ginTrafficClass = traffic_class;
        wanted.ginStrongSignalsRequired = strong_signals;
        wanted.ginVaSignalsRequired = false;
        wanted.worldGinBarrierCount = num_world_barriers;
        ncclDevComm_t made{};
        call("ncclDevCommCreate", [&] { return api_.DevCommCreate(live(), &wanted, &made); });
        const std::string image(reinterpret_cast<const char*>(&made), sizeof made);
        return py::bytes(image);
    }

    void remove_device_comm(const std::string& image) {
        ncclDevComm_t made{};
        if (image.size() != sizeof made) throw NcclError("ncclDevCommDestroy", -1, "wrong size");
        std::memcpy(&made, image.data(), sizeof made);
        call("ncclDevCommDestroy", [&] { return api_.DevCommDestroy(live(), &made); });
    }

    // '' while all is well.
    std::string async_error() const {
        ncclResult_t found = ncclSuccess;
        call("ncclCommGetAsyncError", [&] { return api_.CommGetAsyncError(live(), &found); });
        return found == ncclSuccess || found == ncclInProgress ? "" : api_.GetErrorString(found);
    }

    void destroy() { end("ncclCommDestroy", api_.CommDestroy); }
    void abort() { end("ncclCommAbort", api_.CommAbort); }

  private:
    template <class Call>
    void call(const char* name, Call&& made) const {
        const Current current(device_);
        ncclResult_t code;
        {
            const py::gil_scoped_release released;
            code = made();
        }
        check(api_, code, name, comm_);
    }

    ncclComm_t live() const {
        if (comm_ == nullptr) throw NcclError("communicator", -1, "it has been destroyed");
        return comm_;
    }

    template <class Ends>
    void end(const char* name, Ends ends) {
        const ncclComm_t gone = comm_;
        comm_ = nullptr;
        if (gone == nullptr || !owned_) return;
        call(name, [&] { return ends(gone); });
    }

    const Nccl& api_;
    Device device_;
    ncclComm_t comm_ = nullptr;
    bool owned_;
};

int load(const std::string& path) {
    int version = 0;
    const Nccl& api = load_nccl(path);
    check(api, api.GetVersion(&version), "ncclGetVersion");
    return version;
}

py::bytes unique_id() {
    ncclUniqueId id;
    check(nccl(), nccl().GetUniqueId(&id), "ncclGetUniqueId");
    return py::bytes(id.internal, sizeof id.internal);
}

PyObject* nccl_error = nullptr;

void translate(std::exception_ptr thrown) {
    try {
        if (thrown) std::rethrow_exception(thrown);
    } catch (const NcclError& error) {
        py::object raised = py::reinterpret_borrow<py::object>(nccl_error)(error.what());
        raised.attr("call") = error.call;
        raised.attr("code") = error.code;
        PyErr_SetObject(nccl_error, raised.ptr());
    }
}

}  // namespace
}  // namespace epctl::host

PYBIND11_MODULE(epctl_nccl, m) {
    using namespace epctl::host;
    m.doc() = "NCCL communicators, symmetric memory and device communicators.";
    nccl_error = PyErr_NewExceptionWithDoc(
        "epctl_nccl.NcclError", "A call of NCCL that failed: call, code (-1: not made).", PyExc_RuntimeError, nullptr);
    if (nccl_error == nullptr) throw py::error_already_set();
    m.add_object("NcclError", py::reinterpret_borrow<py::object>(nccl_error));
    py::register_exception_translator(&translate);
    m.attr("HEADER_VERSION") = NCCL_VERSION_CODE;
    m.attr("DEVICE_COMM_BYTES") = sizeof(ncclDevComm_t);
    m.def("load", &load, py::arg("path"), "Loads libnccl and returns its version, 23203 for 2.32.3.");
    m.def("unique_id", &unique_id, "What all ranks of a new communicator must be given.");
    py::class_<Comm>(m, "Comm")
        .def(py::init([](const py::bytes& id, int num_ranks, int rank, int device_idx, int traffic_class) {
                 return std::make_unique<Comm>(id, num_ranks, rank, device_idx, traffic_class);
             }),
             py::arg("unique_id"), py::arg("num_ranks"), py::arg("rank"), py::arg("device_idx"),
             py::arg("traffic_class") = -1)
        .def_static(
            "adopt", [](std::uintptr_t comm, int device_idx) { return std::make_unique<Comm>(comm, device_idx); },
            py::arg("comm"), py::arg("device_idx"))
        .def_property_readonly("address", &Comm::address)
        .def("properties", &Comm::properties)
        .def("allocate", &Comm::allocate, py::arg("num_bytes"))
        .def("free", &Comm::free, py::arg("memory"))
        .def("add_window", &Comm::add_window, py::arg("memory"), py::arg("num_bytes"), py::arg("flags"))
        .def("remove_window", &Comm::remove_window, py::arg("window"))
        .def("lsa_address", &Comm::lsa_address, py::arg("window"), py::arg("offset"), py::arg("lsa_rank"))
        .def("add_device_comm", &Comm::add_device_comm, py::arg("gin_type"), py::arg("connection"),
             py::arg("num_contexts"), py::arg("num_signals"), py::arg("num_counters"), py::arg("queue_depth"),
             py::arg("traffic_class"), py::arg("strong_signals"), py::arg("num_world_barriers"))
        .def(
            "remove_device_comm", [](Comm& comm, const py::bytes& image) { comm.remove_device_comm(image); },
            py::arg("image"))
        .def("async_error", &Comm::async_error)
        .def("destroy", &Comm::destroy)
        .def("abort", &Comm::abort);
}
