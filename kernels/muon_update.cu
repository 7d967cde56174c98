// The end of a Muon step, with the same bits as src/engine/ops/muon_update.rs.
#include "matrices.cuh"

// params ← decay·params − ratio·lr·x for every matrix x[matrix, n], with row step[1] of schedule[steps + 1,
// 2]: decay, lr. Nothing changes if bad[1] is set. `compute_copy` is written only with HAS_COMPUTE_COPY.
extern "C" __global__ void __launch_bounds__(THREADS)
muon_update(const T *x, const float *schedule, const u32 *step, const u32 *bad, float *params, T *compute_copy,
            u64 n, float ratio, int rank_row) {
    u64 matrix = blockIdx.y, first = first_of_thread();
    x += matrix * n, params += MASTERS[rank_row][matrix], compute_copy += FLAT[rank_row][matrix];
    float p[ROUNDS][VEC], direction[ROUNDS][VEC];
    // These loads come before anything that depends on another load.
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        u64 at = first + round * STRIDE;
        if (at >= n) continue;
        load(x + at, direction[round]);
        load_streaming(params + at, p[round]);
    }
    if (*bad != 0) return;
    const float *row = schedule + u64(*step) * 2;
    float decay = row[0], size = __fmul_rn(row[1], ratio);
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        u64 at = first + round * STRIDE;
        if (at >= n) continue;
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            p[round][i] = __fmaf_rn(-size, direction[round][i], __fmul_rn(p[round][i], decay));
        }
        store_streaming(params + at, p[round]);
        if (HAS_COMPUTE_COPY) store(compute_copy + at, p[round]);
    }
}
