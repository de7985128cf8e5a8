// The expert-parallel kernels as a library for a CPU; compiled with simt.hpp before everything else.
#include "../../native/ops/ep.cu"

namespace {

template <class Args>
bool tried(const char* wanted, const char* name, void (*kernel)(Args), const void* args, unsigned grid,
           unsigned threads, unsigned shared) {
    if (std::strcmp(wanted, name) != 0) return false;
    const std::remove_const_t<Args>& given = *static_cast<const std::remove_const_t<Args>*>(args);
    simt::launch([&] { kernel(given); }, grid, threads, shared);
    return true;
}

}  // namespace

// 0: the kernel has ended; 1: there is none of that name. Kernels that wait for each other are launched by threads of
// their own.
extern "C" int simt_launch(const char* name, const void* args, unsigned grid, unsigned threads, unsigned shared) {
    const bool found = tried(name, "epctl_ep_dispatch", epctl_ep_dispatch, args, grid, threads, shared) ||
                       tried(name, "epctl_ep_dispatch_finish", epctl_ep_dispatch_finish, args, grid, threads, shared) ||
                       tried(name, "epctl_ep_expand", epctl_ep_expand, args, grid, threads, shared) ||
                       tried(name, "epctl_ep_combine", epctl_ep_combine, args, grid, threads, shared) ||
                       tried(name, "epctl_ep_pull", epctl_ep_pull, args, grid, threads, shared) ||
                       tried(name, "epctl_ep_small_dispatch", epctl_ep_small_dispatch, args, grid, threads, shared) ||
                       tried(name, "epctl_ep_small_combine", epctl_ep_small_combine, args, grid, threads, shared);
    return found ? 0 : 1;
}

// How often blocks pause (one in so many turns of their threads), and for how long.
extern "C" void simt_pauses(uint32_t one_in, uint32_t us) {
    simt::pause_one_in = one_in;
    simt::pause_us = us;
}
