// One rank of a test of the loopback plugin: GIN over NCCL, every wait with a limit, one line of JSON for each check.
// loopback_driver SCENARIO RANK NUM_RANKS NUM_GPUS SHARED_FD LIMIT_S
#include <nccl.h>
#include <nccl_device.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>
#include <vector>

namespace {

constexpr int kNumContexts = 4;
constexpr int kNumSignals = 16;
constexpr size_t kHalfBytes = size_t{64} << 20;
constexpr double kKernelS = 5.0;  // of a wait on the GPU
constexpr double kHostS = 20.0;   // of a wait of the host
constexpr int kCycles = 20;
using Clock = std::chrono::steady_clock;

// Zeroed memory that all ranks map.
struct Shared {
    std::atomic<int> arrived;
    ncclUniqueId id;
};

// Where kernels tell the host how they ended: memory of the host.
struct Outcome {
    int code;                    // ncclResult_t
    unsigned long long elapsed;  // nanoseconds
};

int own_rank = -1;

[[noreturn]] void give_up(const char* what, const char* why, int line) {
    std::printf("{\"rank\": %d, \"check\": \"%s\", \"ok\": false, \"why\": \"%s, line %d\"}\n", own_rank, what, why,
                line);
    std::fflush(stdout);
    _exit(3);
}

#define CUDA(call)                                                                      \
    do {                                                                                \
        const cudaError_t code_ = (call);                                               \
        if (code_ != cudaSuccess) give_up("cuda", cudaGetErrorString(code_), __LINE__); \
    } while (0)
#define NCCL(call)                                                                      \
    do {                                                                                \
        const ncclResult_t code_ = (call);                                              \
        if (code_ != ncclSuccess) give_up("nccl", ncclGetErrorString(code_), __LINE__); \
    } while (0)

void tell(const char* check, bool ok, double value, const char* unit) {
    std::printf("{\"rank\": %d, \"check\": \"%s\", \"ok\": %s, \"value\": %.6g, \"unit\": \"%s\"}\n", own_rank, check,
                ok ? "true" : "false", value, unit);
    std::fflush(stdout);
}

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

__device__ unsigned long long now_ns() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

__device__ unsigned word_of(unsigned seed, size_t i) {
    return (seed + 1u) * 2654435761u + static_cast<unsigned>(i);
}

__global__ void fill(unsigned* words, size_t num_words, unsigned seed) {
    const size_t step = size_t{gridDim.x} * blockDim.x;
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < num_words; i += step)
        words[i] = word_of(seed, i);
}

__global__ void count_wrong(const unsigned* words, size_t num_words, unsigned seed, unsigned long long* wrong) {
    const size_t step = size_t{gridDim.x} * blockDim.x;
    unsigned long long mine = 0;
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < num_words; i += step)
        mine += words[i] != word_of(seed, i);
    if (mine != 0) atomicAdd(wrong, mine);
}

struct Ring {
    ncclWindow_t window;
    size_t bytes;
    size_t target_offset;
    int rounds;
    unsigned long long base[kNumContexts];  // values of the signals before
    unsigned long long timeout;             // cycles
    Outcome* outcome;                       // one for each block
};

// Each block has a context and a signal of its own; block b moves the bytes b * bytes … of the window.
template <bool kStrong>
__global__ void ring(const ncclDevComm comm, const Ring args) {
    const int block = static_cast<int>(blockIdx.x);
    const int peer = (comm.rank + 1) % comm.nRanks;
    const size_t own = block * args.bytes;
    const ncclGinSignal_t signal = block;
    const ncclGin gin(comm, block);
    const unsigned long long begin = now_ns();
    ncclResult_t code = ncclSuccess;
    for (int i = 0; i < args.rounds && code == ncclSuccess; ++i) {
        if constexpr (kStrong) {
            gin.put(ncclTeamWorld(comm), peer, args.window, args.target_offset + own, args.window, own, args.bytes,
                    ncclGin_StrongSignalInc{signal}, ncclGin_None{}, ncclCoopCta());
        } else {
            gin.put(ncclTeamWorld(comm), peer, args.window, args.target_offset + own, args.window, own, args.bytes,
                    ncclGin_WeakSignalAdd{signal, 1}, ncclGin_None{}, ncclCoopCta());
        }
        code = gin.waitSignal(ncclCoopCta(), signal, args.base[block] + i + 1, 64, cuda::memory_order_acquire,
                              args.timeout);
    }
    __syncthreads();
    const unsigned long long end = now_ns();
    if (code == ncclSuccess) code = gin.flush(ncclCoopCta(), cuda::memory_order_acquire, ncclGin_None{}, args.timeout);
    if (threadIdx.x == 0) {
        args.outcome[block].code = code;
        args.outcome[block].elapsed = end - begin;
    }
}

__global__ void fetch(const ncclDevComm comm, const Ring args) {
    const int peer = (comm.rank + 1) % comm.nRanks;
    const ncclGin gin(comm, 0);
    const unsigned long long begin = now_ns();
    gin.get(ncclTeamWorld(comm), peer, args.window, 0, args.window, args.target_offset, args.bytes, ncclCoopCta());
    const ncclResult_t code = gin.flush(ncclCoopCta(), cuda::memory_order_acquire, ncclGin_None{}, args.timeout);
    if (threadIdx.x == 0) *args.outcome = {code, now_ns() - begin};
}

// Values of all sizes, then a signal alone, then one in the window itself.
__global__ void values(const ncclDevComm comm, const Ring args, size_t window_signal) {
    const int peer = (comm.rank + 1) % comm.nRanks;
    const ncclTeam team = ncclTeamWorld(comm);
    const unsigned long long mine = 0x1122334455667700ull + comm.rank;
    const ncclGin gin(comm, 0);
    const unsigned long long begin = now_ns();
    gin.putValue(team, peer, args.window, args.target_offset, mine, ncclGin_None{}, ncclCoopCta());
    gin.putValue(team, peer, args.window, args.target_offset + 8, static_cast<unsigned>(mine), ncclGin_None{},
                 ncclCoopCta());
    gin.putValue(team, peer, args.window, args.target_offset + 12, static_cast<unsigned short>(mine), ncclGin_None{},
                 ncclCoopCta());
    gin.putValue(team, peer, args.window, args.target_offset + 14, static_cast<unsigned char>(mine), ncclGin_None{},
                 ncclCoopCta());
    gin.signal(team, peer, ncclGin_StrongSignalAdd{0, 1}, ncclCoopCta());
    ncclResult_t code =
        gin.waitSignal(ncclCoopCta(), 0, args.base[0] + 1, 64, cuda::memory_order_acquire, args.timeout);
    gin.signal(team, peer, ncclGin_StrongVASignalAdd{args.window, window_signal, 5}, ncclCoopCta());
    if (code == ncclSuccess)
        code =
            gin.waitSignal(ncclCoopCta(), args.window, window_signal, 5, 64, cuda::memory_order_acquire, args.timeout);
    if (code == ncclSuccess) code = gin.flush(ncclCoopCta(), cuda::memory_order_acquire, ncclGin_None{}, args.timeout);
    if (threadIdx.x == 0) *args.outcome = {code, now_ns() - begin};
}

// Ends while its puts are on their way.
__global__ void put_and_leave(const ncclDevComm comm, const Ring args) {
    const ncclGin gin(comm, 0);
    for (int i = 0; i < args.rounds; ++i)
        gin.put(ncclTeamWorld(comm), (comm.rank + 1) % comm.nRanks, args.window, args.target_offset, args.window, 0,
                args.bytes, ncclGin_StrongSignalInc{1}, ncclGin_None{}, ncclCoopCta());
    if (threadIdx.x == 0) *args.outcome = {ncclSuccess, 0};
}

__global__ void wait_only(const ncclDevComm comm, const Ring args) {
    const ncclGin gin(comm, 0);
    const unsigned long long begin = now_ns();
    const ncclResult_t code = gin.waitSignal(ncclCoopCta(), 2, 1, 64, cuda::memory_order_acquire, args.timeout);
    if (threadIdx.x == 0) *args.outcome = {code, now_ns() - begin};
}

class Rank {
  public:
    Rank(int rank, int num_ranks, int num_gpus, Shared* shared)
        : rank_(rank), num_ranks_(num_ranks), ranks_per_gpu_((num_ranks + num_gpus - 1) / num_gpus), shared_(shared) {
        CUDA(cudaSetDevice(rank % num_gpus));
        int khz = 0;
        CUDA(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, rank % num_gpus));
        cycles_per_s_ = khz * 1e3;
        CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
        CUDA(cudaHostAlloc(&outcome_, kNumContexts * sizeof(Outcome), cudaHostAllocMapped));
        CUDA(cudaHostAlloc(&wrong_, sizeof *wrong_, cudaHostAllocMapped));
    }

    int rank() const { return rank_; }
    int num_ranks() const { return num_ranks_; }
    int ranks_per_gpu() const { return ranks_per_gpu_; }
    int previous() const { return (rank_ + num_ranks_ - 1) % num_ranks_; }
    int next() const { return (rank_ + 1) % num_ranks_; }
    char* data() const { return data_; }
    ncclComm_t comm() const { return comm_; }

    void barrier() {
        const int goal = (++barriers_) * num_ranks_;
        shared_->arrived.fetch_add(1);
        const auto begin = Clock::now();
        while (shared_->arrived.load() < goal) {
            if (seconds_since(begin) > kHostS) give_up("barrier", "a rank did not arrive", __LINE__);
            usleep(100);
        }
    }

    void open(size_t half_bytes) {
        if (rank_ == 0) NCCL(ncclGetUniqueId(&shared_->id));
        barrier();
        NCCL(ncclCommInitRank(&comm_, num_ranks_, shared_->id, rank_));
        ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
        NCCL(ncclCommQueryProperties(comm_, &properties));
        if (properties.ginType != NCCL_GIN_TYPE_PROXY) give_up("gin", "GIN's proxy is not there", __LINE__);
        num_lsa_teams_ = properties.nLsaTeams;
        ncclDevCommRequirements_t wanted = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
        wanted.ginContextCount = kNumContexts;
        wanted.ginSignalCount = kNumSignals;
        wanted.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
        NCCL(ncclDevCommCreate(comm_, &wanted, &dev_comm_));
        void* memory = nullptr;
        NCCL(ncclMemAlloc(&memory, 2 * half_bytes));
        data_ = static_cast<char*>(memory);
        half_ = half_bytes;
        NCCL(ncclCommWindowRegister(comm_, data_, 2 * half_bytes, &window_, NCCL_WIN_DEFAULT));
        CUDA(cudaMemsetAsync(data_, 0, 2 * half_bytes, stream_));
        settle("memset");
        barrier();
        base_.assign(kNumContexts, 0);
    }

    void close() {
        NCCL(ncclDevCommDestroy(comm_, &dev_comm_));
        NCCL(ncclCommWindowDeregister(comm_, window_));
        NCCL(ncclMemFree(data_));
        NCCL(ncclCommDestroy(comm_));
    }

    int num_lsa_teams() const { return num_lsa_teams_; }

    // Waits for the stream, with the host's limit.
    void settle(const char* what) {
        CUDA(cudaEventRecord(event_, stream_));
        const auto begin = Clock::now();
        for (;;) {
            const cudaError_t code = cudaEventQuery(event_);
            if (code == cudaSuccess) return;
            if (code != cudaErrorNotReady) give_up(what, cudaGetErrorString(code), __LINE__);
            if (seconds_since(begin) > kHostS) give_up(what, "a kernel does not end", __LINE__);
            usleep(20);
        }
    }

    Ring args(size_t bytes, int rounds) const {
        const auto timeout = static_cast<unsigned long long>(kKernelS * cycles_per_s_);
        Ring made{window_, bytes, half_, rounds, {}, timeout, outcome_};
        for (int i = 0; i < kNumContexts; ++i) made.base[i] = base_[i];
        return made;
    }

    // Loads every kernel of this program before one may wait for another.
    void load_kernels() {
        cudaFuncAttributes found;
        CUDA(cudaFuncGetAttributes(&found, fill));
        CUDA(cudaFuncGetAttributes(&found, count_wrong));
        CUDA(cudaFuncGetAttributes(&found, ring<true>));
        CUDA(cudaFuncGetAttributes(&found, ring<false>));
        CUDA(cudaFuncGetAttributes(&found, fetch));
        CUDA(cudaFuncGetAttributes(&found, values));
        CUDA(cudaFuncGetAttributes(&found, put_and_leave));
        CUDA(cudaFuncGetAttributes(&found, wait_only));
    }

    template <class Kernel, class... Args>
    Outcome launch(const char* what, Kernel kernel, int blocks, const Args&... args) {
        for (int i = 0; i < kNumContexts; ++i) outcome_[i] = {ncclInProgress, 0};
        kernel<<<blocks, 128, 0, stream_>>>(dev_comm_, args...);
        CUDA(cudaGetLastError());
        settle(what);
        Outcome worst = outcome_[0];
        for (int i = 1; i < blocks; ++i)
            if (outcome_[i].code != ncclSuccess || outcome_[i].elapsed > worst.elapsed) {
                if (worst.code == ncclSuccess) worst = outcome_[i];
            }
        return worst;
    }

    void write_pattern(size_t bytes, unsigned seed) {
        fill<<<128, 256, 0, stream_>>>(reinterpret_cast<unsigned*>(data_), bytes / 4, seed);
        CUDA(cudaGetLastError());
        CUDA(cudaMemsetAsync(data_ + half_, 0, bytes, stream_));
        settle("fill");
        barrier();
    }

    unsigned long long wrong_words(size_t bytes, unsigned seed) {
        *wrong_ = 0;
        count_wrong<<<128, 256, 0, stream_>>>(reinterpret_cast<unsigned*>(data_ + half_), bytes / 4, seed, wrong_);
        CUDA(cudaGetLastError());
        settle("count");
        barrier();
        return *wrong_;
    }

    void advance(int block, unsigned long long by) { base_[block] += by; }

  private:
    const int rank_;
    const int num_ranks_;
    const int ranks_per_gpu_;
    Shared* const shared_;
    int barriers_ = 0;
    double cycles_per_s_ = 0;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t event_ = nullptr;
    Outcome* outcome_ = nullptr;
    unsigned long long* wrong_ = nullptr;
    ncclComm_t comm_ = nullptr;
    ncclDevComm_t dev_comm_{};
    ncclWindow_t window_ = nullptr;
    char* data_ = nullptr;
    size_t half_ = 0;
    int num_lsa_teams_ = 0;
    std::vector<unsigned long long> base_;
};

template <bool kStrong>
void around(Rank& job, const char* name, size_t bytes, int rounds, int blocks, unsigned seed) {
    char check[64];
    job.write_pattern(bytes * blocks, seed + job.rank());
    std::snprintf(check, sizeof check, "%s %zu B x %d", name, bytes, blocks);
    const Ring args = job.args(bytes, rounds);
    const Outcome told = job.launch(check, ring<kStrong>, blocks, args);
    for (int block = 0; block < blocks; ++block) job.advance(block, rounds);
    tell(check, told.code == ncclSuccess, static_cast<double>(told.elapsed) / rounds / 1e3, "us a round");
    if (told.code != ncclSuccess) give_up(check, ncclGetErrorString(static_cast<ncclResult_t>(told.code)), __LINE__);
    const unsigned long long wrong = job.wrong_words(bytes * blocks, seed + job.previous());
    std::snprintf(check, sizeof check, "%s %zu B x %d data", name, bytes, blocks);
    tell(check, wrong == 0, static_cast<double>(wrong), "wrong words");
}

void basic(Rank& job) {
    job.open(kHalfBytes);
    tell("LSA teams", true, job.num_lsa_teams(), "teams");
    const size_t sizes[] = {8, 1024, 7168, size_t{1} << 20, kHalfBytes};
    around<true>(job, "warm-up", 8, 3, 1, 1);
    for (const size_t bytes : sizes) around<true>(job, "put+signal", bytes, bytes > 1 << 16 ? 3 : 10, 1, 100);
    around<false>(job, "put+weak signal", 7168, 10, 1, 200);
    around<true>(job, "contexts at once", size_t{1} << 20, 5, kNumContexts, 300);
    around<false>(job, "contexts at once, weak", 7168, 5, kNumContexts, 400);

    for (const size_t bytes : {size_t{8}, size_t{7168}, kHalfBytes}) {
        char check[64];
        job.write_pattern(bytes, 500 + job.rank());
        std::snprintf(check, sizeof check, "get %zu B", bytes);
        const Outcome told = job.launch(check, fetch, 1, job.args(bytes, 1));
        tell(check, told.code == ncclSuccess, static_cast<double>(told.elapsed) / 1e3, "us");
        std::snprintf(check, sizeof check, "get %zu B data", bytes);
        const unsigned long long wrong = job.wrong_words(bytes, 500 + job.next());
        tell(check, wrong == 0, static_cast<double>(wrong), "wrong words");
    }

    job.write_pattern(4096, 600);
    const size_t window_signal = kHalfBytes + 2048;
    const Outcome told = job.launch("values", values, 1, job.args(0, 1), window_signal);
    job.advance(0, 1);
    tell("values and signals alone", told.code == ncclSuccess, static_cast<double>(told.elapsed) / 1e3, "us");
    unsigned char found[15];
    unsigned char wanted[15];
    const unsigned long long value = 0x1122334455667700ull + job.previous();
    for (const auto& [offset, size] : {std::pair{0, 8}, {8, 4}, {12, 2}, {14, 1}})
        std::memcpy(wanted + offset, &value, size);
    CUDA(cudaMemcpy(found, job.data() + kHalfBytes, sizeof found, cudaMemcpyDeviceToHost));
    tell("values data", std::memcmp(found, wanted, sizeof found) == 0, found[0], "first byte");
    job.barrier();
    job.close();
}

// Contexts go away while copies are on their way, and what is made afterwards works.
void in_flight(Rank& job) {
    job.open(kHalfBytes);
    job.write_pattern(kHalfBytes, 700 + job.rank());
    const Outcome told = job.launch("put and leave", put_and_leave, 1, job.args(kHalfBytes, 8));
    const auto begin = Clock::now();
    job.close();
    tell("destroyed in flight", told.code == ncclSuccess && seconds_since(begin) < kHostS, seconds_since(begin), "s");
    job.barrier();
    job.open(kHalfBytes);
    around<true>(job, "put+signal afterwards", size_t{1} << 20, 3, 1, 800);
    job.close();
}

// The last rank dies in the middle.
void killed(Rank& job) {
    job.open(kHalfBytes);
    around<true>(job, "put+signal before", 7168, 3, 1, 900);
    if (job.rank() == job.num_ranks() - 1) {
        raise(SIGKILL);
    }
    const auto begin = Clock::now();
    const Outcome told = job.launch("wait for a dead rank", wait_only, 1, job.args(0, 1));
    tell("the wait ends", told.code == ncclTimeout || told.code == ncclSystemError || told.code == ncclRemoteError,
         static_cast<double>(told.elapsed) / 1e9, "s");
    ncclResult_t error = ncclSuccess;
    while (error == ncclSuccess && seconds_since(begin) < kHostS) {
        NCCL(ncclCommGetAsyncError(job.comm(), &error));
        usleep(10000);
    }
    tell("NCCL tells", error != ncclSuccess && error != ncclInProgress, seconds_since(begin), "s");
    const auto abort_begin = Clock::now();
    static_cast<void>(ncclCommAbort(job.comm()));  // whatever it answers: it is to come to an end
    tell("aborted", seconds_since(abort_begin) < kHostS, seconds_since(abort_begin), "s");
}

size_t num_fds() {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return static_cast<size_t>(std::distance(begin(files), end(files))) - 1;  // without the folder itself
}

size_t resident_pages() {
    size_t whole = 0;
    size_t resident = 0;
    std::FILE* const file = std::fopen("/proc/self/statm", "r");
    if (file == nullptr || std::fscanf(file, "%zu %zu", &whole, &resident) != 2)
        give_up("statm", "unreadable", __LINE__);
    std::fclose(file);
    return resident;
}

void cycles(Rank& job) {
    constexpr int kSettled = 4;  // cycles after which nothing more is set up once for all
    // NCCL 2.32.3 does not free signalOffsetsDev (gin_host_proxy.cc), 2 MiB as any cuMem allocation, of its two GIN
    // contexts: the device communicator's, and its own with the first window. Without GIN such communicators leave
    // nothing.
    constexpr double kNcclKeepsMiB = 2 * 2.0;
    constexpr double kMiB = 1 << 20;
    size_t fds = 0;
    size_t free_bytes = 0;
    size_t pages = 0;
    for (int i = 0; i < kCycles; ++i) {
        job.open(size_t{2} << 20);
        around<true>(job, "cycle", 4096, 2, 1, i);
        job.close();
        job.barrier();
        size_t now_free = 0;
        size_t total = 0;
        CUDA(cudaMemGetInfo(&now_free, &total));
        if (i == kSettled) {
            fds = num_fds();
            free_bytes = now_free;
            pages = resident_pages();
        }
        if (i + 1 == kCycles) {
            const double files = static_cast<double>(num_fds()) - static_cast<double>(fds);
            const double gpu = (static_cast<double>(free_bytes) - static_cast<double>(now_free)) / kMiB;
            const double host = (static_cast<double>(resident_pages()) - static_cast<double>(pages)) *
                                static_cast<double>(getpagesize()) / kMiB;
            tell("files left open", files <= 0, files, "files");
            const double by_nccl = kNcclKeepsMiB * (kCycles - 1 - kSettled) * job.ranks_per_gpu();
            tell("GPU memory left", gpu - by_nccl < 4, gpu - by_nccl, "MiB");
            tell("host memory left", host < 64, host, "MiB");
        }
        job.barrier();
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 7) return 2;
    own_rank = std::atoi(argv[2]);
    alarm(static_cast<unsigned>(std::atoi(argv[6])));  // whatever hangs, ends
    void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, std::atoi(argv[5]), 0);
    if (memory == MAP_FAILED) give_up("mmap", "no shared memory", __LINE__);
    Rank job(own_rank, std::atoi(argv[3]), std::atoi(argv[4]), static_cast<Shared*>(memory));
    job.load_kernels();
    const char* const scenario = argv[1];
    if (std::strcmp(scenario, "basic") == 0) {
        basic(job);
    } else if (std::strcmp(scenario, "in_flight") == 0) {
        in_flight(job);
    } else if (std::strcmp(scenario, "killed") == 0) {
        killed(job);
    } else if (std::strcmp(scenario, "cycles") == 0) {
        cycles(job);
    } else {
        return 2;
    }
    tell("end", true, 0, "");
    return 0;
}
