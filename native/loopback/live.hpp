// What NCCL holds pointers to in this process.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "collective.hpp"
#include "context.hpp"
#include "sockets.hpp"

namespace epctl::loopback {

// Kept in one place, so that one that is gone is told from one that lives.
struct Live {
    std::mutex mutex;
    std::vector<std::unique_ptr<Listener>> listeners;
    std::vector<std::unique_ptr<Collective>> collectives;
};

inline Live& live() {
    // Not destroyed at exit, when NCCL's threads may still run; and not on the heap, since NCCL loads the library anew
    // for each communicator.
    alignas(Live) static unsigned char space[sizeof(Live)];
    static Live* const made = new (space) Live;
    return *made;
}

template <class Kept>
Kept* keep(std::vector<std::unique_ptr<Kept>>& all, std::unique_ptr<Kept> one) {
    const std::lock_guard<std::mutex> guard(live().mutex);
    all.push_back(std::move(one));
    return all.back().get();
}

template <class Kept>
std::unique_ptr<Kept> let_go(std::vector<std::unique_ptr<Kept>>& all, const void* wanted) {
    const std::lock_guard<std::mutex> guard(live().mutex);
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.get() == wanted; });
    if (found == all.end()) return nullptr;
    std::unique_ptr<Kept> one = std::move(*found);
    all.erase(found);
    if (all.empty()) all.shrink_to_fit();
    return one;
}

inline bool is_open(const void* collective) {
    const std::lock_guard<std::mutex> guard(live().mutex);
    const auto& all = live().collectives;
    return std::any_of(all.begin(), all.end(), [&](const auto& one) { return one.get() == collective; });
}

// The one that has the context; null when it is gone.
inline Collective* owner_of(const Context* context) {
    const std::lock_guard<std::mutex> guard(live().mutex);
    for (const auto& one : live().collectives)
        if (one->owns(context)) return one.get();
    return nullptr;
}

}  // namespace epctl::loopback
