// Global norm of all gradients, clip factor, and flag of a bad step.
//
// Definitions: THREADS (per block), BATCH (16-byte loads in flight per thread) and ROUNDS (batches per
// thread) for the partial sums; FINAL_THREADS in the block that adds them up.
#include "common.cuh"
#include "ranges.cuh"

constexpr int BLOCK = THREADS * BATCH * ROUNDS * 4;

// partials[b] = Σ grads² over elements BLOCK·b to BLOCK·(b + 1) of n, for the blocks that the rank of table
// row `rank_row` owns. The partition depends on n alone.
extern "C" __global__ void __launch_bounds__(THREADS)
    grad_norm_partials(const float *grads, float *partials, u64 n, int rank_row) {
    __shared__ float scratch[WARP];
    float sums[4] = {};
    u64 block = flat_of(rank_row, u64(blockIdx.x) * BLOCK), start = block + threadIdx.x * 4;
    if (block + BLOCK <= n) {
        for (int round = 0; round < ROUNDS; round++) {
            float g[BATCH][4];
#pragma unroll
            for (int b = 0; b < BATCH; b++) load(grads + start + (round * BATCH + b) * THREADS * 4, g[b]);
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
#pragma unroll
                for (int i = 0; i < 4; i++) sums[i] = fmaf(g[b][i], g[b][i], sums[i]);
            }
        }
    } else {
        for (u64 at = start; at < n; at += THREADS * 4) {
            for (int i = 0; i < 4 && at + i < n; i++) sums[0] = fmaf(grads[at + i], grads[at + i], sums[0]);
        }
    }
    float sum = block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]), scratch);
    if (threadIdx.x == 0) partials[block / BLOCK] = sum;
}

// norm[1] = √Σ partials[count] and clip[1] = min(1, max_norm / (norm + 1e-6)). bad[1] becomes 1 if the norm
// or loss[1] is not finite, and otherwise stays. Everything up to the results is in f64. max_norm comes as
// the bits of an f64; 0 never clips.
extern "C" __global__ void __launch_bounds__(FINAL_THREADS)
    grad_norm(const float *partials, const float *loss, float *norm, float *clip, u32 *bad, int count,
              u64 max_norm) {
    __shared__ double sums[FINAL_THREADS];
    double sum = 0.0;
#pragma unroll 8
    for (int i = threadIdx.x; i < count; i += FINAL_THREADS) sum += double(partials[i]);
    sums[threadIdx.x] = sum;
    for (int half = FINAL_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x > 0) return;
    double total = sqrt(sums[0]), limit = __longlong_as_double(i64(max_norm));
    *norm = float(total);
    *clip = float(limit > 0.0 ? fmin(limit / (total + 1e-6), 1.0) : 1.0);
    // NaN compares false.
    bool finite =
        total < __longlong_as_double(0x7ff0000000000000) && fabsf(*loss) < __int_as_float(0x7f800000);
    if (!finite) *bad = 1;
}
