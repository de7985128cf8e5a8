#include "memory.hpp"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "report.hpp"

namespace epctl::loopback {
namespace {

constexpr std::uint64_t kMagic = 0x7265676973747279ull;
constexpr std::size_t kSegmentsInMessage = 32;
// Announcements are sent before any is read, so that all of them must fit into the buffers of a socket.
constexpr std::size_t kMaxSegments = 1024;

struct SegmentSizes {
    std::uint64_t count;
    std::uint64_t sizes[kSegmentsInMessage];
};

std::string because(CUresult code, const char* call) {
    return std::string(call) + " says " + error_name(code) + ": it is no memory of ncclMemAlloc, or has no handle";
}

// One segment: its size and a file descriptor. False, with the reason in `segments`, when it cannot be shared.
bool export_segment(CUdeviceptr base, std::uint64_t size, Segments& segments) {
    const Driver& api = driver();
    CUmemGenericAllocationHandle handle = 0;
    CUresult code = api.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(base));
    if (code != kCudaSuccess) {
        segments.why_not = because(code, "cuMemRetainAllocationHandle");
        return false;
    }
    int fd = -1;
    code = api.cuMemExportToShareableHandle(&fd, handle, kPosixFileDescriptor, 0);
    check_quietly(api.cuMemRelease(handle), "cuMemRelease");
    if (code != kCudaSuccess) {
        segments.why_not = because(code, "cuMemExportToShareableHandle");
        return false;
    }
    segments.fds.emplace_back(fd);
    segments.sizes.push_back(size);
    return true;
}

bool export_segments(CUdeviceptr data, std::uint64_t size, Segments& segments) {
    for (CUdeviceptr at = data; at < data + size;) {
        CUdeviceptr base = 0;
        std::size_t bytes = 0;
        const CUresult code = driver().cuMemGetAddressRange_v2(&base, &bytes, at);
        if (code != kCudaSuccess || bytes == 0) {
            segments.why_not = because(code, "cuMemGetAddressRange");
            return false;
        }
        if (segments.sizes.size() == kMaxSegments) {
            segments.why_not = "it consists of more than " + std::to_string(kMaxSegments) + " segments";
            return false;
        }
        if (segments.sizes.empty()) segments.offset = at - base;
        if (!export_segment(base, bytes, segments)) return false;
        at = base + bytes;
    }
    return true;
}

}  // namespace

Segments export_range(CUdeviceptr data, std::uint64_t size) {
    Segments segments;
    if (size == 0) segments.why_not = "it is empty";
    if (size == 0 || !export_segments(data, size, segments)) {
        segments.fds.clear();
        segments.sizes.clear();
    }
    return segments;
}

Mapping::Mapping(const Segments& segments, const Device& device) : offset_(segments.offset) {
    for (const std::uint64_t size : segments.sizes) size_ += size;
    try {
        map(segments, device);
    } catch (const Failure&) {
        release();
        throw;
    }
}

void Mapping::map(const Segments& segments, const Device& device) {
    const Driver& api = driver();
    check(api.cuMemAddressReserve(&address_, size_, 0, 0, 0), "cuMemAddressReserve");
    CUdeviceptr at = address_;
    for (std::size_t i = 0; i < segments.sizes.size(); ++i) {
        CUmemGenericAllocationHandle handle = 0;
        void* const shareable = reinterpret_cast<void*>(static_cast<std::intptr_t>(segments.fds[i].get()));
        check(api.cuMemImportFromShareableHandle(&handle, shareable, kPosixFileDescriptor),
              "cuMemImportFromShareableHandle");
        const CUresult code = api.cuMemMap(at, segments.sizes[i], 0, handle, 0);
        check_quietly(api.cuMemRelease(handle), "cuMemRelease");
        check(code, "cuMemMap");
        mapped_.push_back(segments.sizes[i]);
        at += segments.sizes[i];
    }
    const CUmemAccessDesc access{kLocationDevice, device.ordinal(), kReadWrite};
    check(api.cuMemSetAccess(address_, size_, &access, 1), "cuMemSetAccess, for memory of the peer's GPU");
}

Mapping::~Mapping() {
    release();
}

Mapping::Mapping(Mapping&& other) noexcept {
    *this = std::move(other);
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
    if (this == &other) return *this;
    release();
    address_ = std::exchange(other.address_, 0);
    size_ = std::exchange(other.size_, 0);
    offset_ = std::exchange(other.offset_, 0);
    mapped_ = std::exchange(other.mapped_, {});
    return *this;
}

void Mapping::release() noexcept {
    if (address_ == 0) return;
    CUdeviceptr at = address_;
    for (const std::uint64_t size : mapped_) {
        check_quietly(driver().cuMemUnmap(at, size), "cuMemUnmap");
        at += size;
    }
    mapped_.clear();
    check_quietly(driver().cuMemAddressFree(address_, size_), "cuMemAddressFree");
    address_ = 0;
}

void announce(int socket, const Registration& registration, const Segments& segments, const Deadline& deadline,
              const std::string& who) {
    Announcement told{kMagic,
                      registration.id,
                      registration.size,
                      segments.offset,
                      registration.type,
                      static_cast<std::uint32_t>(segments.sizes.size()),
                      {}};
    std::snprintf(told.why_not, sizeof told.why_not, "%s", segments.why_not.c_str());
    send_message(socket, &told, sizeof told, {}, deadline, who);
    for (std::size_t begin = 0; begin < segments.sizes.size(); begin += kSegmentsInMessage) {
        SegmentSizes part{std::min(kSegmentsInMessage, segments.sizes.size() - begin), {}};
        std::vector<int> fds;
        for (std::size_t i = 0; i < part.count; ++i) {
            part.sizes[i] = segments.sizes[begin + i];
            fds.push_back(segments.fds[begin + i].get());
        }
        send_message(socket, &part, sizeof part, fds, deadline, who);
    }
}

Registration::Peer learn(int socket, const Registration& registration, const Device* device, const Deadline& deadline,
                         const std::string& who) {
    Announcement told{};
    receive_message(socket, &told, sizeof told, deadline, who);
    if (told.magic != kMagic || told.id != registration.id || told.type != registration.type)
        throw Failure(kInternalError, who + " registers other memory (" + std::to_string(told.id) + ", type " +
                                          std::to_string(told.type) + ") than this rank (" +
                                          std::to_string(registration.id) + ", type " +
                                          std::to_string(registration.type) + ")");
    Segments segments;
    segments.offset = told.offset;
    std::uint64_t total = 0;
    while (segments.sizes.size() < told.num_segments) {
        SegmentSizes part{};
        std::vector<Fd> fds = receive_message(socket, &part, sizeof part, deadline, who);
        if (part.count == 0 || part.count > kSegmentsInMessage || fds.size() != part.count)
            throw Failure(kInternalError, who + " sent segments without their memory");
        for (std::size_t i = 0; i < part.count; ++i) total += part.sizes[i];
        segments.sizes.insert(segments.sizes.end(), part.sizes, part.sizes + part.count);
        std::move(fds.begin(), fds.end(), std::back_inserter(segments.fds));
    }
    Registration::Peer peer;
    peer.size = told.size;
    told.why_not[sizeof told.why_not - 1] = '\0';
    peer.why_not = told.why_not;
    if (segments.sizes.empty() || device == nullptr) return peer;
    if (told.offset > total || told.size > total - told.offset)
        throw Failure(kInternalError, who + " sent segments that are smaller than its memory");
    peer.mapping = Mapping(segments, *device);
    peer.data = peer.mapping.data();
    return peer;
}

}  // namespace epctl::loopback
