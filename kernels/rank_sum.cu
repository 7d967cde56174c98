// Sums over ranks what they have copied to one of them.
//
// Definitions: THREADS (per block), VEC (neighbors per thread, loaded together).
#include "common.cuh"

// out[n] ← Σ over ranks, in their order: `out` itself for rank `own`, and staged[ranks - 1][stride] for the
// others. The CPU's communicator uses the same order.
extern "C" __global__ void __launch_bounds__(THREADS)
rank_sum(float *out, const float *staged, u64 n, u64 stride, int ranks, int own) {
    u64 at = (u64(blockIdx.x) * THREADS + threadIdx.x) * VEC;
    if (at + VEC <= n) {
        float mine[VEC], sum[VEC], x[VEC];
        load(out + at, mine);
        for (int rank = 0; rank < ranks; rank++) {
            if (rank == own) {
#pragma unroll
                for (int i = 0; i < VEC; i++) x[i] = mine[i];
            } else {
                load(staged + (rank < own ? rank : rank - 1) * stride + at, x);
            }
#pragma unroll
            for (int i = 0; i < VEC; i++) sum[i] = rank == 0 ? x[i] : __fadd_rn(sum[i], x[i]);
        }
        store(out + at, sum);
        return;
    }
    for (; at < n; at++) {
        float mine = out[at], sum = 0.0f;
        for (int rank = 0; rank < ranks; rank++) {
            float x = rank == own ? mine : staged[(rank < own ? rank : rank - 1) * stride + at];
            sum = rank == 0 ? x : __fadd_rn(sum, x);
        }
        out[at] = sum;
    }
}
