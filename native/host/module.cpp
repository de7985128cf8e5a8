// Cubins and kernels for Python. Device pointers and streams cross as integers, kernel arguments as the bytes of one
// struct.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "driver.hpp"

namespace py = pybind11;

namespace epctl::host {
namespace {

// The device's primary context, which the CUDA runtime and PyTorch use as well, for as long as this object lives.
class Device {
  public:
    explicit Device(int ordinal) : api_(driver()) {
        check(api_, api_.cuDeviceGet(&device_, ordinal), "cuDeviceGet");
        check(api_, api_.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
    }
    ~Device() { api_.cuDevicePrimaryCtxRelease_v2(device_); }
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    const Driver& api() const { return api_; }
    CUcontext context() const { return context_; }

  private:
    const Driver& api_;
    CUdevice device_ = 0;
    CUcontext context_ = nullptr;
};

// Makes the device's context current and puts the caller's back.
class Current {
  public:
    explicit Current(const Device& device) : api_(device.api()) {
        check(api_, api_.cuCtxPushCurrent_v2(device.context()), "cuCtxPushCurrent");
    }
    ~Current() {
        CUcontext mine = nullptr;
        api_.cuCtxPopCurrent_v2(&mine);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

  private:
    const Driver& api_;
};

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
