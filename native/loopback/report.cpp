#include "report.hpp"

#include <atomic>
#include <cstdio>
#include <cstring>

namespace epctl::loopback {
namespace {

constexpr const char* kSource = "epctl-loopback";
std::atomic<Logger> logger_in_use{nullptr};

// A program that ends without closing its communicators leaves threads that would log into what is gone already.
struct AtExit {
    std::atomic<bool> reached{false};
    ~AtExit() { reached.store(true); }
} at_exit;

}  // namespace

Failure system_failure(const std::string& text, int error) {
    return Failure(kSystemError, text + ": " + std::strerror(error) + " (" + std::to_string(error) + ")");
}

void set_logger(Logger logger) {
    logger_in_use.store(logger);
}

void warn(const std::string& text, int line) {
    if (at_exit.reached.load()) return;
    const Logger logger = logger_in_use.load();
    if (logger != nullptr) {
        logger(kLogWarn, kLogAll, kSource, line, "GIN loopback: %s", text.c_str());
    } else {
        std::fprintf(stderr, "GIN loopback: %s\n", text.c_str());
    }
}

void info(const std::string& text, int line) {
    const Logger logger = logger_in_use.load();
    if (logger != nullptr && !at_exit.reached.load())
        logger(kLogInfo, kLogNet, kSource, line, "GIN loopback: %s", text.c_str());
}

}  // namespace epctl::loopback
