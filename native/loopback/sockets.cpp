#include "sockets.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "report.hpp"

namespace epctl::loopback {
namespace {

constexpr std::uint64_t kMagic = 0x6b636162706f6f6cull;
constexpr std::uint32_t kVersion = 1;
constexpr double kHelloLimitS = 5.0;  // a stranger that says nothing does not use up the time of the others
constexpr int kBacklog = 4096;
constexpr const char* kPrefix = "epctl-loopback-";
enum Kind : std::uint32_t { kControl = 0, kSignals = 1 };

struct Hello {
    std::uint64_t magic;
    std::uint8_t token[16];
    std::int32_t rank;
    std::uint32_t kind;
};

struct Welcome {
    std::uint64_t magic;
    std::int32_t rank;
    std::uint32_t kind;
};

void random_bytes(void* data, std::size_t size) {
    if (getrandom(data, size, 0) != static_cast<ssize_t>(size)) throw system_failure("getrandom", errno);
}

// The 16 bytes of the boot id, whose text has dashes.
void read_machine(std::uint8_t (&machine)[16]) {
    char text[64] = {};
    const Fd file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
    if (!file || read(file.get(), text, sizeof text - 1) <= 0) throw system_failure("the boot id", errno);
    unsigned digit = 0;
    for (const char* at = text; *at != '\0' && digit < 32; ++at) {
        const bool letter = *at >= 'a' && *at <= 'f';
        if (!letter && !(*at >= '0' && *at <= '9')) continue;
        const int value = letter ? *at - 'a' + 10 : *at - '0';
        machine[digit / 2] = static_cast<std::uint8_t>(machine[digit / 2] << 4 | value);
        ++digit;
    }
}

socklen_t fill(sockaddr_un* address, const char* name) {
    const std::size_t length = strnlen(name, sizeof Handle{}.name);
    std::memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    std::memcpy(address->sun_path + 1, name, length);
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

Fd new_socket() {
    Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) throw system_failure("socket", errno);
    return fd;
}

ucred other_side(int fd) {
    ucred who{};
    socklen_t size = sizeof who;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) throw system_failure("SO_PEERCRED", errno);
    return who;
}

std::string named(int rank, int num_ranks, pid_t process) {
    return "rank " + std::to_string(rank) + " of " + std::to_string(num_ranks) + " (process " +
           std::to_string(process) + ")";
}

void check_handle(const Handle& theirs, const Handle& ours, const std::string& who) {
    if (theirs.magic != kMagic || theirs.version != kVersion)
        throw Failure(kInvalidUsage, who + " uses another plugin, or another version of this one");
    if (std::memcmp(theirs.machine, ours.machine, sizeof ours.machine) != 0)
        throw Failure(kInvalidUsage, who + " runs on another machine: the loopback connects processes of one");
    if (theirs.network_namespace != ours.network_namespace)
        throw Failure(kInvalidUsage, who + " is in another network namespace: start the containers with one network");
}

// To a rank that listens: it does since before its handle was sent, so that a refusal means that it is gone.
Fd connect_one(const Handle& theirs, int rank, Kind kind, pid_t& process, const Deadline& deadline,
               const std::string& who) {
    Fd fd = new_socket();
    sockaddr_un address;
    const socklen_t length = fill(&address, theirs.name);
    while (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
        if (errno == ECONNREFUSED) throw Failure(kRemoteError, who + " has ended before it connected");
        if (errno != EAGAIN && errno != EINTR) throw system_failure("connect to " + who, errno);
        if (deadline.over()) throw Failure(kSystemError, who + " did not accept in time (EPCTL_LOOPBACK_TIMEOUT_S)");
        usleep(500);
    }
    const ucred credentials = other_side(fd.get());
    if (credentials.uid != geteuid())
        throw Failure(kSystemError, "the socket of " + who + " belongs to user " + std::to_string(credentials.uid));
    process = credentials.pid;
    Hello hello{kMagic, {}, rank, kind};
    std::memcpy(hello.token, theirs.token, sizeof hello.token);
    send_message(fd.get(), &hello, sizeof hello, {}, deadline, who);
    Welcome welcome{};
    receive_message(fd.get(), &welcome, sizeof welcome, deadline, who);
    if (welcome.magic != kMagic || welcome.kind != kind) throw Failure(kInternalError, who + " answers with nonsense");
    return fd;
}

// Whoever is no rank of ours is turned away and does not end the set-up.
void accept_one(const Listener& listener, int rank, std::vector<Link>& links, const Deadline& deadline) {
    Fd fd(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
        if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
        throw system_failure("accept", errno);
    }
    const ucred credentials = other_side(fd.get());
    if (credentials.uid != geteuid()) {
        warn("a process of user " + std::to_string(credentials.uid) + " tried to connect and was turned away");
        return;
    }
    Hello hello{};
    const int num_ranks = static_cast<int>(links.size());
    try {
        receive_message(fd.get(), &hello, sizeof hello, Deadline(kHelloLimitS), "a process that connected");
    } catch (const Failure& failure) {
        warn(std::string("a connection was dropped: ") + failure.what());
        return;
    }
    const bool known = hello.magic == kMagic && hello.rank > rank && hello.rank < num_ranks && hello.kind <= kSignals &&
                       std::memcmp(hello.token, listener.handle().token, sizeof hello.token) == 0;
    if (!known) {
        warn("process " + std::to_string(credentials.pid) + " connected without the token and was turned away");
        return;
    }
    Link& link = links[static_cast<std::size_t>(hello.rank)];
    Fd& place = hello.kind == kControl ? link.control : link.signals;
    const std::string who = named(hello.rank, num_ranks, credentials.pid);
    if (place) throw Failure(kInternalError, who + " connected twice");
    link.process = credentials.pid;
    const Welcome welcome{kMagic, rank, hello.kind};
    send_message(fd.get(), &welcome, sizeof welcome, {}, deadline, who);
    place = std::move(fd);
}

std::string missing(const std::vector<Link>& links, int rank) {
    std::string text;
    for (std::size_t other = static_cast<std::size_t>(rank) + 1; other < links.size(); ++other)
        if (!links[other].control || !links[other].signals)
            text += (text.empty() ? "rank " : ", ") + std::to_string(other);
    return text;
}

}  // namespace

Listener::Listener() : fd_(new_socket()) {
    handle_.magic = kMagic;
    handle_.version = kVersion;
    handle_.process = getpid();
    random_bytes(handle_.token, sizeof handle_.token);
    read_machine(handle_.machine);
    struct stat found{};
    if (stat("/proc/self/ns/net", &found) != 0) throw system_failure("the network namespace", errno);
    handle_.network_namespace = found.st_ino;
    std::uint8_t unique[12];
    random_bytes(unique, sizeof unique);
    std::string name = kPrefix;
    for (const std::uint8_t byte : unique) {
        name += "0123456789abcdef"[byte >> 4];
        name += "0123456789abcdef"[byte & 15];
    }
    std::memcpy(handle_.name, name.c_str(), name.size() + 1);
    sockaddr_un address;
    const socklen_t length = fill(&address, handle_.name);
    if (bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) throw system_failure("bind", errno);
    if (listen(fd_.get(), kBacklog) != 0) throw system_failure("listen", errno);
}

std::vector<Link> connect_all(const Listener& listener, const std::vector<Handle>& handles, int rank,
                              const Deadline& deadline) {
    const int num_ranks = static_cast<int>(handles.size());
    if (rank < 0 || rank >= num_ranks)
        throw Failure(kInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(num_ranks));
    std::vector<Link> links(handles.size());
    for (int other = 0; other < num_ranks; ++other)
        check_handle(handles[static_cast<std::size_t>(other)], listener.handle(),
                     named(other, num_ranks, handles[static_cast<std::size_t>(other)].process));
    // Each connects to the lower ranks and waits for their welcome: rank 0 waits for nobody, so it comes to an end.
    for (int other = 0; other < rank; ++other) {
        const Handle& theirs = handles[static_cast<std::size_t>(other)];
        const std::string who = named(other, num_ranks, theirs.process);
        Link& link = links[static_cast<std::size_t>(other)];
        link.control = connect_one(theirs, rank, kControl, link.process, deadline, who);
        link.signals = connect_one(theirs, rank, kSignals, link.process, deadline, who);
    }
    for (std::string waited = missing(links, rank); !waited.empty(); waited = missing(links, rank)) {
        wait_for(listener.fd(), POLLIN, deadline, waited);
        accept_one(listener, rank, links, deadline);
    }
    return links;
}

}  // namespace epctl::loopback
