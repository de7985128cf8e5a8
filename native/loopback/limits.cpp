#include "limits.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "report.hpp"

namespace epctl::loopback {
namespace {

constexpr const char* kVariable = "EPCTL_LOOPBACK_TIMEOUT_S";
constexpr double kDefault = 60.0;
constexpr double kMost = 86400.0;
constexpr double kLeast = 0.1;
constexpr double kDrain = 10.0;

}  // namespace

double limit_s() {
    const char* const text = std::getenv(kVariable);
    if (text == nullptr || *text == '\0') return kDefault;
    char* end = nullptr;
    const double value = std::strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= kLeast && value <= kMost))
        throw Failure(kInvalidArgument,
                      std::string(kVariable) + "=" + text + " is no number of seconds from 0.1 to 86400");
    return value;
}

double drain_limit_s() {
    return std::min(limit_s(), kDrain);
}

}  // namespace epctl::loopback
