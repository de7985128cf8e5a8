#include "device.hpp"

#include <unistd.h>

#include <string>

#include "limits.hpp"
#include "report.hpp"

// The kernel for all architectures, put into the library by the assembler.
extern "C" const unsigned char epctl_loopback_image[];
asm(R"(
    .section .rodata
    .balign 16
    .type epctl_loopback_image, @object
    .hidden epctl_loopback_image
    .globl epctl_loopback_image
epctl_loopback_image:
    .incbin ")" EPCTL_LOOPBACK_IMAGE R"("
    .quad 0
    .size epctl_loopback_image, . - epctl_loopback_image
    .text
)");

namespace epctl::loopback {
namespace {

constexpr unsigned kPollUs = 50;

// Pinned memory of the host, which is at one address for the CPU and the GPU.
class Scratch {
  public:
    Scratch() {
        void* data = nullptr;
        check(driver().cuMemHostAlloc(&data, kBytes, kHostPortable | kHostMapped), "cuMemHostAlloc");
        words_ = static_cast<volatile std::uint64_t*>(data);
        for (unsigned i = 0; i < kWords; ++i) words_[i] = 0;
    }
    ~Scratch() { check_quietly(driver().cuMemFreeHost(const_cast<std::uint64_t*>(words_)), "cuMemFreeHost"); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    CUdeviceptr at(unsigned word) const { return reinterpret_cast<CUdeviceptr>(words_ + word); }
    std::uint64_t operator[](unsigned word) const { return words_[word]; }

    static constexpr unsigned kWords = 3;

  private:
    static constexpr std::size_t kBytes = kWords * sizeof(std::uint64_t);
    volatile std::uint64_t* words_;
};

// A stream that goes with its block.
class Stream {
  public:
    explicit Stream(CUstream stream) : stream_(stream) {}
    ~Stream() { Device::destroy(stream_); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    CUstream get() const { return stream_; }

  private:
    CUstream stream_;
};

}  // namespace

Device::Current::Current(const Device& device) : capture_mode_(kCaptureRelaxed) {
    check(driver().cuCtxPushCurrent_v2(device.context_), "cuCtxPushCurrent");
    check_quietly(driver().cuThreadExchangeStreamCaptureMode(&capture_mode_), "cuThreadExchangeStreamCaptureMode");
}

Device::Current::~Current() {
    CUcontext mine = nullptr;
    check_quietly(driver().cuThreadExchangeStreamCaptureMode(&capture_mode_), "cuThreadExchangeStreamCaptureMode");
    check_quietly(driver().cuCtxPopCurrent_v2(&mine), "cuCtxPopCurrent");
}

Device::Device() {
    check(driver().cuCtxGetDevice(&ordinal_), "cuCtxGetDevice, for the GPU of the calling thread");
    check(driver().cuDevicePrimaryCtxRetain(&context_, ordinal_), "cuDevicePrimaryCtxRetain");
    try {
        load();
    } catch (const Failure&) {
        release();
        throw;
    }
}

Device::~Device() {
    release();
}

void Device::release() noexcept {
    if (module_ != nullptr && driver().cuCtxPushCurrent_v2(context_) == kCudaSuccess) {
        CUcontext mine = nullptr;
        check_quietly(driver().cuModuleUnload(module_), "cuModuleUnload");
        check_quietly(driver().cuCtxPopCurrent_v2(&mine), "cuCtxPopCurrent");
    }
    module_ = nullptr;
    check_quietly(driver().cuDevicePrimaryCtxRelease_v2(ordinal_), "cuDevicePrimaryCtxRelease");
}

void Device::load() {
    const Current current(*this);
    int least = 0;
    int able = 0;
    check(driver().cuCtxGetStreamPriorityRange(&least, &priority_), "cuCtxGetStreamPriorityRange");
    check(driver().cuDeviceGetAttribute(&able, kAttribute64BitMemOps, ordinal_), "cuDeviceGetAttribute");
    can_set_ = able != 0;
    check(driver().cuModuleLoadData(&module_, epctl_loopback_image), "cuModuleLoadData");
    check(driver().cuModuleGetFunction(&add_, module_, "epctl_loopback_add"), "cuModuleGetFunction");
    prove();
}

void Device::prove() const {
    const Scratch scratch;
    const Stream stream(new_stream());
    if (can_set_) set(scratch.at(0), 5, stream.get());
    SignalBatch batch{};
    batch.num_entries = 1;
    batch.entries[0] = {reinterpret_cast<unsigned long long*>(scratch.at(0)), 3};
    add(batch, stream.get());
    if (can_set_) put_value(scratch.at(1), 0x1122334455667788, 8, stream.get());
    put_value(scratch.at(2), 0x11223344, 4, stream.get());
    const Deadline deadline(limit_s());
    while (!idle(stream.get())) {
        if (deadline.over()) throw Failure(kSystemError, "the GPU is too busy for a first kernel of the loopback");
        usleep(kPollUs);
    }
    const std::uint64_t wanted[] = {can_set_ ? 8u : 3u, can_set_ ? 0x1122334455667788u : 0u, 0x11223344};
    for (unsigned i = 0; i < Scratch::kWords; ++i)
        if (scratch[i] != wanted[i])
            throw Failure(kInternalError, "GPU " + std::to_string(ordinal_) + " wrote " + std::to_string(scratch[i]) +
                                              " and not " + std::to_string(wanted[i]) + " into word " +
                                              std::to_string(i));
}

CUstream Device::new_stream() const {
    CUstream stream = nullptr;
    check(driver().cuStreamCreateWithPriority(&stream, kStreamNonBlocking, priority_), "cuStreamCreateWithPriority");
    return stream;
}

CUevent Device::new_event() const {
    CUevent event = nullptr;
    check(driver().cuEventCreate(&event, kEventNoTiming), "cuEventCreate");
    return event;
}

void Device::copy_within_gpus(CUdeviceptr target, CUdeviceptr source, std::uint64_t size, CUstream stream) const {
    check(driver().cuMemcpyDtoDAsync_v2(target, source, size, stream), "cuMemcpyDtoDAsync");
}

void Device::copy_any(CUdeviceptr target, CUdeviceptr source, std::uint64_t size, CUstream stream) const {
    check(driver().cuMemcpyAsync(target, source, size, stream), "cuMemcpyAsync");
}

void Device::put_value(CUdeviceptr target, std::uint64_t value, std::uint64_t size, CUstream stream) const {
    // Only these two arrive in one piece, which is what a reader of 4 or 8 bytes counts on.
    if (size == 8 && target % 8 == 0 && can_set_) {
        check(driver().cuStreamWriteValue64_v2(stream, target, value, 0), "cuStreamWriteValue64");
    } else if (size == 4 && target % 4 == 0) {
        check(driver().cuStreamWriteValue32_v2(stream, target, static_cast<unsigned>(value), 0),
              "cuStreamWriteValue32");
    } else {
        check(driver().cuMemcpyHtoDAsync_v2(target, &value, size, stream), "cuMemcpyHtoDAsync");
    }
}

void Device::set(CUdeviceptr target, std::uint64_t value, CUstream stream) const {
    check(driver().cuStreamWriteValue64_v2(stream, target, value, 0), "cuStreamWriteValue64");
}

void Device::add(const SignalBatch& batch, CUstream stream) const {
    void* parameters[] = {const_cast<SignalBatch*>(&batch)};
    check(driver().cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr), "cuLaunchKernel");
}

void Device::record(CUevent event, CUstream stream) const {
    check(driver().cuEventRecord(event, stream), "cuEventRecord");
}

bool Device::finished(CUevent event) const {
    const CUresult code = driver().cuEventQuery(event);
    if (code == kCudaNotReady) return false;
    check(code, "cuEventQuery");
    return true;
}

bool Device::idle(CUstream stream) const {
    const CUresult code = driver().cuStreamQuery(stream);
    if (code == kCudaNotReady) return false;
    check(code, "cuStreamQuery");
    return true;
}

CUevent Device::mark(CUstream stream) noexcept {
    CUevent event = nullptr;
    if (stream == nullptr || driver().cuEventCreate(&event, kEventNoTiming) != kCudaSuccess) return nullptr;
    if (driver().cuEventRecord(event, stream) == kCudaSuccess) return event;
    destroy(event);
    return nullptr;
}

bool Device::settled(CUevent event) noexcept {
    return driver().cuEventQuery(event) != kCudaNotReady;
}

bool Device::settled(CUstream stream) noexcept {
    return driver().cuStreamQuery(stream) != kCudaNotReady;
}

void Device::destroy(CUstream stream) noexcept {
    check_quietly(driver().cuStreamDestroy_v2(stream), "cuStreamDestroy");
}

void Device::destroy(CUevent event) noexcept {
    check_quietly(driver().cuEventDestroy_v2(event), "cuEventDestroy");
}

}  // namespace epctl::loopback
