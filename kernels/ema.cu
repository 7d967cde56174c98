// The moving average of the weights over the flat parameter buffers, with the same bits as
// src/engine/ops/ema.rs.
#include "optimizer.cuh"

// average[n] ← average + weights[step]·(params - average). Nothing changes if bad[1] is set. The kernel
// updates the elements of the average from first to n. If the rank owns ranges, the average holds only the
// rank's elements; params holds only the rank's shard if masters are sharded.
extern "C" __global__ void __launch_bounds__(THREADS)
ema(const float *params, const float *weights, const u32 *step, const u32 *bad, float *average, u64 first,
    u64 n, int rank_row) {
    ThreadElements elements = elements_of_thread(first, rank_row);
    u64 at = elements.at, master = elements.master;
    bool whole = at + VEC <= n;
    float p4[VEC], a4[VEC];
    // These loads come before anything that depends on another load.
    if (whole) {
        load_streaming(params + master, p4);
        load_streaming(average + at, a4);
    }
    if (*bad != 0) return;
    float weight = weights[*step];
    if (whole) {
#pragma unroll
        for (int i = 0; i < VEC; i++) a4[i] = __fmaf_rn(weight, __fsub_rn(p4[i], a4[i]), a4[i]);
        store_streaming(average + at, a4);
        return;
    }
    for (; at < n; at++, master++) {
        average[at] = __fmaf_rn(weight, __fsub_rn(params[master], average[at]), average[at]);
    }
}
