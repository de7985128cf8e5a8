// Cubins and kernels for Python. Device pointers and streams cross as integers, kernel arguments as the bytes of one
// struct.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "device.hpp"

namespace py = pybind11;

namespace epctl::host {
namespace {

class Cubin {
  public:
    Cubin(const std::string& image, int ordinal) : device_(ordinal) {
        const Current current(device_);
        check(api(), api().cuModuleLoadData(&module_, image.data()), "cuModuleLoadData");
    }
    ~Cubin() {
        // After an error of a kernel the context is lost, and with it the module: nothing to report from here.
        CUcontext mine = nullptr;
        if (api().cuCtxPushCurrent_v2(device_.context()) != kSuccess) return;
        api().cuModuleUnload(module_);
        api().cuCtxPopCurrent_v2(&mine);
    }
    Cubin(const Cubin&) = delete;
    Cubin& operator=(const Cubin&) = delete;

    const Driver& api() const { return device_.api(); }
    const Device& device() const { return device_; }
    CUmodule module() const { return module_; }

  private:
    Device device_;
    CUmodule module_ = nullptr;
};

class Kernel {
  public:
    // Asks for the dynamic shared memory once: launches stay short.
    Kernel(std::shared_ptr<Cubin> cubin, const std::string& name, unsigned shared_bytes)
        : cubin_(std::move(cubin)), shared_bytes_(shared_bytes) {
        const Current current(cubin_->device());
        check(api(), api().cuModuleGetFunction(&function_, cubin_->module(), name.c_str()), "cuModuleGetFunction");
        const int asked = static_cast<int>(shared_bytes);
        check(api(), api().cuFuncSetAttribute(function_, kMaxDynamicSharedBytes, asked), "cuFuncSetAttribute");
    }

    int attribute(int which) const {
        int value = 0;
        const Current current(cubin_->device());
        check(api(), api().cuFuncGetAttribute(&value, which, function_), "cuFuncGetAttribute");
        return value;
    }

    void launch(unsigned grid, unsigned block, std::uintptr_t stream, const std::string& arguments) const {
        // The driver takes a copy of the arguments before it returns.
        void* parameters[] = {const_cast<char*>(arguments.data())};
        const Current current(cubin_->device());
        CUresult code;
        {
            // A full queue of launches blocks, and another thread may have to run for it to empty.
            const py::gil_scoped_release released;
            code = api().cuLaunchKernel(function_, grid, 1, 1, block, 1, 1, shared_bytes_,
                                        reinterpret_cast<CUstream>(stream), parameters, nullptr);
        }
        check(api(), code, "cuLaunchKernel");
    }

  private:
    const Driver& api() const { return cubin_->api(); }

    std::shared_ptr<Cubin> cubin_;
    CUfunction function_ = nullptr;
    unsigned shared_bytes_;
};

// A tensor of bytes in memory of ours, as DLPack hands it over (dmlc.github.io/dlpack, version 0.8's layout).
struct DlTensor {
    void* data;
    std::int32_t device_type, device_id;
    std::int32_t num_dims;
    std::uint8_t type_code, type_bits;
    std::uint16_t type_lanes;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
};
struct DlManaged {
    DlTensor tensor;
    void* context;
    void (*deleter)(DlManaged*);
};
constexpr std::int32_t kDlCuda = 2;
constexpr std::uint8_t kDlUnsigned = 1;
constexpr const char* kDlName = "dltensor";

py::capsule bytes_tensor(std::uintptr_t address, std::int64_t num_bytes, int ordinal) {
    struct Held {
        DlManaged managed;
        std::int64_t shape;
    };
    auto* const held = new Held{};
    held->shape = num_bytes;
    DlTensor& tensor = held->managed.tensor;
    tensor.data = reinterpret_cast<void*>(address);
    tensor.device_type = kDlCuda;
    tensor.device_id = ordinal;
    tensor.num_dims = 1;
    tensor.type_code = kDlUnsigned;
    tensor.type_bits = 8;
    tensor.type_lanes = 1;
    tensor.shape = &held->shape;
    held->managed.context = held;
    held->managed.deleter = [](DlManaged* managed) { delete static_cast<Held*>(managed->context); };
    return py::capsule(&held->managed, kDlName, [](PyObject* capsule) {
        // Who took the tensor has renamed the capsule, and calls the deleter itself.
        if (!PyCapsule_IsValid(capsule, kDlName)) return;
        auto* const managed = static_cast<DlManaged*>(PyCapsule_GetPointer(capsule, kDlName));
        managed->deleter(managed);
    });
}

int driver_version() {
    int version = 0;
    check(driver(), driver().cuDriverGetVersion(&version), "cuDriverGetVersion");
    return version;
}

int device_count() {
    int count = 0;
    check(driver(), driver().cuDeviceGetCount(&count), "cuDeviceGetCount");
    return count;
}

PyObject* driver_error = nullptr;

void translate(std::exception_ptr thrown) {
    try {
        if (thrown) std::rethrow_exception(thrown);
    } catch (const DriverError& error) {
        py::object raised = py::reinterpret_borrow<py::object>(driver_error)(error.what());
        raised.attr("call") = error.call;
        raised.attr("code") = error.code;
        raised.attr("name") = error.name;
        PyErr_SetObject(driver_error, raised.ptr());
    }
}

}  // namespace
}  // namespace epctl::host

PYBIND11_MODULE(epctl_host, m) {
    using namespace epctl::host;
    m.doc() = "Cubins and kernels through the CUDA driver, which is looked for at the first call.";
    driver_error = PyErr_NewExceptionWithDoc("epctl_host.DriverError",
                                             "A call of the CUDA driver that failed: call, code (-1: not made), name.",
                                             PyExc_RuntimeError, nullptr);
    if (driver_error == nullptr) throw py::error_already_set();
    m.add_object("DriverError", py::reinterpret_borrow<py::object>(driver_error));
    py::register_exception_translator(&translate);
    m.def("driver_version", &driver_version, "13000 for CUDA 13.0.");
    m.def("device_count", &device_count, "Devices that the driver shows.");
    m.def("bytes_tensor", &bytes_tensor, py::arg("address"), py::arg("num_bytes"), py::arg("device_idx"),
          "A DLPack capsule over device memory, which must stay longer than all its users.");
    py::class_<Cubin, std::shared_ptr<Cubin>>(m, "Cubin")
        .def(py::init([](const py::bytes& image, int ordinal) { return std::make_shared<Cubin>(image, ordinal); }),
             py::arg("image"), py::arg("device_idx"));
    py::class_<Kernel>(m, "Kernel")
        .def(py::init<std::shared_ptr<Cubin>, const std::string&, unsigned>(), py::arg("cubin"), py::arg("name"),
             py::arg("shared_bytes") = 0)
        .def("attribute", &Kernel::attribute, py::arg("which"), "cuFuncGetAttribute.")
        .def(
            "launch",
            [](const Kernel& kernel, unsigned grid, unsigned block, std::uintptr_t stream, const py::bytes& arguments) {
                kernel.launch(grid, block, stream, arguments);
            },
            py::arg("grid"), py::arg("block"), py::arg("stream"), py::arg("arguments"),
            "Launches grid × block threads on the stream (an integer; 0 is the default one).");
}
