// What the kernel of signals.cu is given: a few additions to make in their order.
#pragma once

namespace epctl::loopback {

constexpr unsigned kBatchEntries = 32;

struct SignalBatch {
    unsigned long long num_entries;
    struct {
        unsigned long long* address;
        unsigned long long value;
    } entries[kBatchEntries];
};

}  // namespace epctl::loopback
