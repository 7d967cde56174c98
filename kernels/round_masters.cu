// Rounds the masters into the copy that products read, as src/engine/ops/round_masters.rs does.
#include "optimizer.cuh"

// compute_copy ← params, for the elements of the optimizer's slots from first to n. If the rank owns ranges,
// params holds only the rank's shard, and the other elements of the copy stay as they are.
extern "C" __global__ void __launch_bounds__(THREADS)
    round_masters(const float *params, T *compute_copy, u64 first, u64 n, int rank_row) {
    auto [at, flat, master] = elements_of_thread(first, rank_row);
    if (at + VEC <= n) {
        float p4[VEC];
        load_streaming(params + master, p4);
        store(compute_copy + flat, p4);
        return;
    }
    for (; at < n; at++, flat++, master++) compute_copy[flat] = down<T>(params[master]);
}
