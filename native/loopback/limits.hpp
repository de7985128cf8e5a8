// Time limits: every wait of the plugin has one.
#pragma once

#include <chrono>

namespace epctl::loopback {

// Seconds of EPCTL_LOOPBACK_TIMEOUT_S, 60 without it. Throws Failure for what is no number from 0.1 to 86400.
double limit_s();

// Seconds for requests in flight when their context or memory goes away, and for farewells: at most 10.
double drain_limit_s();

class Deadline {
  public:
    explicit Deadline(double seconds)
        : end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}

    bool over() const { return Clock::now() >= end_; }

    // For poll(2): rounded up, so that a wait does not spin in its last millisecond.
    int left_ms() const {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now()).count();
        return left < 0 ? 0 : static_cast<int>(left) + 1;
    }

  private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point end_;
};

}  // namespace epctl::loopback
