// Adds to signals that device code may reset: only the GPU can do that without losing an update.
#include "signal_batch.h"

extern "C" __global__ void __launch_bounds__(32)
    epctl_loopback_add(const __grid_constant__ epctl::loopback::SignalBatch batch) {
    if (threadIdx.x != 0) return;
    for (unsigned i = 0; i < batch.num_entries; ++i) {
        // The copies that a signal speaks of were complete before this kernel was launched; a signal after another one
        // is not to be seen before it. Nothing but this GPU adds to its rank's signals.
        __threadfence_system();
        atomicAdd(batch.entries[i].address, batch.entries[i].value);
    }
}
