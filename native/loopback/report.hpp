// Errors inside the plugin, and the way to NCCL's log.
#pragma once

#include <stdexcept>
#include <string>

#include "api.hpp"

namespace epctl::loopback {

// What ends a call of NCCL, with what it is answered and what is logged.
class Failure : public std::runtime_error {
  public:
    Failure(Result answer, const std::string& text) : std::runtime_error(text), result(answer) {}

    Result result;
};

// "text: No such file or directory (2)" as a failure of the system.
Failure system_failure(const std::string& text, int error);

// NCCL's logger, for all communicators of the process. A warning also becomes the text of ncclGetLastError.
void set_logger(Logger logger);

// Without a logger, warnings go to standard error: nothing is lost.
void warn(const std::string& text, int line = __builtin_LINE());
void info(const std::string& text, int line = __builtin_LINE());

}  // namespace epctl::loopback
