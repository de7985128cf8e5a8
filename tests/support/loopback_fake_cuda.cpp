// A CUDA driver without a GPU, for the loopback plugin: memory is shared memory, streams are lists that one thread
// works off. Copies take FAKE_NS_PER_BYTE, so that a short one on another stream overtakes a long one. What is alive is
// counted.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;
struct Op {
    std::function<void()> run;
    std::chrono::nanoseconds takes;
};
struct Stream {
    std::deque<Op> ops;
    Clock::time_point begun;
};
struct Event {
    bool done = true;
};
struct Range {
    size_t size;
    int fd;
    bool exportable;
};
struct Batch {
    unsigned long long num;
    struct {
        unsigned long long* address;
        unsigned long long value;
    } entries[32];
};

std::recursive_mutex mutex;
std::map<uint64_t, Range> ranges;
std::map<std::string, long> alive;
std::map<Stream*, Stream*> streams;
bool frozen = false;
bool broken = false;
std::string refused;
using Guard = std::lock_guard<std::recursive_mutex>;

void count(const char* kind, long by) {
    const Guard guard(mutex);
    alive[kind] += by;
}
bool refuses(const char* call) {
    return refused == call;
}

void work() {
    for (;;) {
        {
            const Guard guard(mutex);
            for (auto& [stream, unused] : streams) {
                while (!frozen && !stream->ops.empty()) {
                    if (Clock::now() - stream->begun < stream->ops.front().takes) break;
                    stream->ops.front().run();
                    stream->ops.pop_front();
                    stream->begun = Clock::now();
                }
            }
        }
        usleep(20);
    }
}

int push(void* stream, std::function<void()> run, size_t bytes = 0) {
    static const long ns = std::getenv("FAKE_NS_PER_BYTE") ? std::atol(std::getenv("FAKE_NS_PER_BYTE")) : 0;
    const Guard guard(mutex);
    if (broken) return 700;
    auto* const queue = static_cast<Stream*>(stream);
    if (queue->ops.empty()) queue->begun = Clock::now();
    queue->ops.push_back({std::move(run), std::chrono::nanoseconds(static_cast<long>(bytes) * ns)});
    return 0;
}

Range* find(uint64_t address, uint64_t* base) {
    auto at = ranges.upper_bound(address);
    if (at == ranges.begin()) return nullptr;
    --at;
    if (address >= at->first + at->second.size) return nullptr;
    *base = at->first;
    return &at->second;
}

}  // namespace

extern "C" {
// For tests.
void* fake_alloc(size_t size, int exportable) {
    const Guard guard(mutex);
    const int fd = memfd_create("fake", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0) return nullptr;
    void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ranges[reinterpret_cast<uint64_t>(data)] = {size, fd, exportable != 0};
    return data;
}
void fake_free(void* data) {
    const Guard guard(mutex);
    const Range range = ranges[reinterpret_cast<uint64_t>(data)];
    munmap(data, range.size);
    close(range.fd);
    ranges.erase(reinterpret_cast<uint64_t>(data));
}
void fake_freeze(int on) {
    const Guard guard(mutex);
    frozen = on != 0;
}
void fake_break() {
    const Guard guard(mutex);
    broken = true;
}
void fake_refuse(const char* call) {
    refused = call;
}
long fake_alive(const char* kind) {
    const Guard guard(mutex);
    return alive[kind];
}

int cuInit(unsigned) {
    static std::thread worker(work);
    worker.detach();
    return 0;
}
int cuGetErrorName(int code, const char** name) {
    *name = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_INVALID_VALUE";
    return 0;
}
int cuGetErrorString(int, const char** text) {
    *text = "made up";
    return 0;
}
int cuCtxGetDevice(int* device) {
    *device = 0;
    return 0;
}
int cuDeviceGetAttribute(int* value, int, int) {
    *value = std::getenv("FAKE_NO_MEM_OPS") == nullptr;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
    *context = &alive;
    count("context", 1);
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) {
    count("context", -1);
    return 0;
}
int cuCtxPushCurrent_v2(void*) {
    count("pushed", 1);
    return 0;
}
int cuCtxPopCurrent_v2(void**) {
    count("pushed", -1);
    return 0;
}
int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
    thread_local int current = 0;
    std::swap(current, *mode);
    return 0;
}
int cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
    const Guard guard(mutex);
    if (flags != 1 || priority != -5) return 1;
    auto* const made = new Stream;
    streams[made] = made;
    *stream = made;
    count("stream", 1);
    return 0;
}
int cuStreamDestroy_v2(void* stream) {
    const Guard guard(mutex);
    streams.erase(static_cast<Stream*>(stream));
    delete static_cast<Stream*>(stream);
    count("stream", -1);
    return 0;
}
int cuStreamQuery(void* stream) {
    const Guard guard(mutex);
    if (broken) return 700;
    return static_cast<Stream*>(stream)->ops.empty() ? 0 : 600;
}
int cuStreamWriteValue32_v2(void* stream, uint64_t address, unsigned value, unsigned) {
    return push(stream, [=] { *reinterpret_cast<volatile unsigned*>(address) = value; });
}
int cuStreamWriteValue64_v2(void* stream, uint64_t address, uint64_t value, unsigned) {
    return push(stream, [=] { *reinterpret_cast<volatile uint64_t*>(address) = value; });
}
int cuEventCreate(void** event, unsigned) {
    *event = new Event;
    count("event", 1);
    return 0;
}
int cuEventDestroy_v2(void*) {
    // Not freed: a stream may still have it, and a real driver would keep it as long.
    count("event", -1);
    return 0;
}
int cuEventRecord(void* event, void* stream) {
    const Guard guard(mutex);
    static_cast<Event*>(event)->done = false;
    return push(stream, [=] { static_cast<Event*>(event)->done = true; });
}
int cuEventQuery(void* event) {
    const Guard guard(mutex);
    if (broken) return 700;
    return static_cast<Event*>(event)->done ? 0 : 600;
}
int cuMemHostAlloc(void** data, size_t size, unsigned) {
    *data = std::malloc(size);
    count("host", 1);
    return 0;
}
int cuMemFreeHost(void* data) {
    std::free(data);
    count("host", -1);
    return 0;
}
int cuMemcpyAsync(uint64_t target, uint64_t source, size_t size, void* stream) {
    return push(
        stream, [=] { std::memmove(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), size); },
        size);
}
int cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t size, void* stream) {
    return cuMemcpyAsync(target, source, size, stream);
}
int cuMemcpyHtoDAsync_v2(uint64_t target, const void* source, size_t size, void* stream) {
    const std::string taken(static_cast<const char*>(source), size);
    return push(stream, [=] { std::memcpy(reinterpret_cast<void*>(target), taken.data(), taken.size()); });
}
int cuMemGetAddressRange_v2(uint64_t* base, size_t* size, uint64_t address) {
    const Guard guard(mutex);
    const Range* const range = find(address, base);
    if (range == nullptr) return 1;
    *size = range->size;
    return 0;
}
int cuMemRetainAllocationHandle(uint64_t* handle, void* address) {
    const Guard guard(mutex);
    uint64_t base = 0;
    const Range* const range = find(reinterpret_cast<uint64_t>(address), &base);
    if (range == nullptr) return 1;
    *handle = range->exportable ? static_cast<uint64_t>(fcntl(range->fd, F_DUPFD_CLOEXEC, 0)) : 0;
    count("handle", 1);
    return 0;
}
int cuMemExportToShareableHandle(void* fd, uint64_t handle, int type, unsigned long long) {
    if (handle == 0 || type != 1) return 1;
    *static_cast<int*>(fd) = fcntl(static_cast<int>(handle), F_DUPFD_CLOEXEC, 0);
    return 0;
}
int cuMemImportFromShareableHandle(uint64_t* handle, void* fd, int) {
    *handle = static_cast<uint64_t>(fcntl(static_cast<int>(reinterpret_cast<intptr_t>(fd)), F_DUPFD_CLOEXEC, 0));
    count("handle", 1);
    return 0;
}
int cuMemRelease(uint64_t handle) {
    if (handle != 0) close(static_cast<int>(handle));
    count("handle", -1);
    return 0;
}
int cuMemAddressReserve(uint64_t* address, size_t size, size_t, uint64_t, unsigned long long) {
    *address = reinterpret_cast<uint64_t>(mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    count("reserved", 1);
    return 0;
}
int cuMemAddressFree(uint64_t address, size_t size) {
    munmap(reinterpret_cast<void*>(address), size);
    count("reserved", -1);
    return 0;
}
int cuMemMap(uint64_t address, size_t size, size_t, uint64_t handle, unsigned long long) {
    if (refuses("cuMemMap")) return 1;
    void* const at = reinterpret_cast<void*>(address);
    if (mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, static_cast<int>(handle), 0) != at) return 1;
    count("mapped", 1);
    return 0;
}
int cuMemUnmap(uint64_t address, size_t size) {
    mmap(reinterpret_cast<void*>(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    count("mapped", -1);
    return 0;
}
int cuMemSetAccess(uint64_t, size_t, const void*, size_t) {
    return refuses("cuMemSetAccess") ? 1 : 0;
}
int cuModuleLoadData(void** module, const void*) {
    *module = &alive;
    count("module", 1);
    return 0;
}
int cuModuleUnload(void*) {
    count("module", -1);
    return 0;
}
int cuModuleGetFunction(void** function, void*, const char* name) {
    *function = &alive;
    return std::strcmp(name, "epctl_loopback_add") == 0 ? 0 : 500;
}
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void* stream,
                   void** parameters, void**) {
    const Batch batch = *static_cast<const Batch*>(parameters[0]);
    count("launches", 1);
    return push(stream, [=] {
        for (unsigned i = 0; i < batch.num; ++i)
            __atomic_fetch_add(batch.entries[i].address, batch.entries[i].value, 5);
    });
}
}
