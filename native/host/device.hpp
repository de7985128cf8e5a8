// A device's primary context, and making it current for the calls of a scope.
#pragma once

#include "driver.hpp"

namespace epctl::host {

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

}  // namespace epctl::host
