// One GPU as the loopback uses it: copies, values and signals on streams of its own.
#pragma once

#include <cstdint>

#include "driver.hpp"
#include "signal_batch.h"

namespace epctl::loopback {

// All streams are non-blocking, so that nothing waits for the default stream of a program, and of the highest priority.
// Copies and values need no SM: a program whose kernel fills the GPU while it waits for them does not stop them.
class Device {
  public:
    // The GPU that is current in this thread. Loads the kernel, runs it once and checks the result, because a module
    // that is loaded while another kernel spins would wait for it. Throws Failure.
    Device();
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    int ordinal() const { return ordinal_; }

    // Makes the GPU's primary context current, and puts the caller's back. Meanwhile a capture of a CUDA graph in
    // another thread is no concern of this one: nothing here belongs into it.
    class Current {
      public:
        explicit Current(const Device& device);
        ~Current();
        Current(const Current&) = delete;
        Current& operator=(const Current&) = delete;

      private:
        int capture_mode_;
    };

    // What follows is called while the context is current, and throws Failure.
    CUstream new_stream() const;
    CUevent new_event() const;
    void copy_within_gpus(CUdeviceptr target, CUdeviceptr source, std::uint64_t size, CUstream stream) const;
    void copy_any(CUdeviceptr target, CUdeviceptr source, std::uint64_t size, CUstream stream) const;
    // At most 8 bytes of the host, taken before the call returns.
    void put_value(CUdeviceptr target, std::uint64_t value, std::uint64_t size, CUstream stream) const;
    // Sets 64 bits, after all writes before it are visible.
    void set(CUdeviceptr target, std::uint64_t value, CUstream stream) const;
    // Whether `set` is there; `add` is always.
    bool can_set() const { return can_set_; }
    void add(const SignalBatch& batch, CUstream stream) const;
    void record(CUevent event, CUstream stream) const;
    bool finished(CUevent event) const;
    bool idle(CUstream stream) const;

    // These do not throw: a GPU that is lost has finished everything.
    // An event after everything that is on the stream now; null where there is nothing to wait for.
    static CUevent mark(CUstream stream) noexcept;
    static bool settled(CUevent event) noexcept;
    static bool settled(CUstream stream) noexcept;
    static void destroy(CUstream stream) noexcept;
    static void destroy(CUevent event) noexcept;

  private:
    void load();
    void prove() const;
    void release() noexcept;

    CUdevice ordinal_ = 0;
    CUcontext context_ = nullptr;
    CUmodule module_ = nullptr;
    CUfunction add_ = nullptr;
    int priority_ = 0;
    bool can_set_ = false;
};

}  // namespace epctl::loopback
