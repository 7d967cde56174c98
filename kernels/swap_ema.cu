// Exchanges the weights and their moving average over the flat parameter buffers, as
// src/engine/ops/swap_ema.rs does.
#include "optimizer.cuh"

// (params, average)[n] ← (average, params), then compute_copy[n] ← params. `compute_copy` is written only
// with HAS_COMPUTE_COPY. The kernel exchanges the elements of the average from first to n. If the rank owns
// ranges, the average holds only the rank's elements; params holds only the rank's shard if masters are
// sharded.
extern "C" __global__ void __launch_bounds__(THREADS)
swap_ema(float *params, float *average, T *compute_copy, u64 first, u64 n, int rank_row) {
    auto [at, flat, master] = elements_of_thread(first, rank_row);
    if (at + VEC <= n) {
        float p4[VEC], a4[VEC];
        load_streaming(params + master, p4);
        load_streaming(average + at, a4);
        store_streaming(params + master, a4);
        store_streaming(average + at, p4);
        if (HAS_COMPUTE_COPY) store(compute_copy + flat, a4);
        return;
    }
    for (; at < n; at++, flat++, master++) {
        float p = params[master], a = average[at];
        params[master] = a, average[at] = p;
        if (HAS_COMPUTE_COPY) compute_copy[flat] = down<T>(a);
    }
}
