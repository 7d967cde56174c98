// Momentum of matrices and their normalized directions, with the same roundings as
// src/engine/ops/muon_momentum.rs.
#include "matrices.cuh"

// Computes like at::lerp, from the nearer end.
__device__ __forceinline__ float lerp(float from, float to, float weight) {
    float difference = __fsub_rn(to, from);
    return weight < 0.5f ? __fmaf_rn(weight, difference, from)
                         : __fmaf_rn(__fsub_rn(weight, 1.0f), difference, to);
}

// momentum ← lerp(momentum, clip·grads, take) for every matrix of n elements. x[matrix, n] gets
// lerp(clip·grads, momentum, keep), or without `nesterov` the momentum; partials[matrix, block of the matrix]
// gets sums of its squares. If bad[1] is set, the momentum stays and x is zero.
extern "C" __global__ void __launch_bounds__(THREADS)
muon_momentum(const float *grads, const float *clip, const u32 *bad, float *momentum, T *x, float *partials,
              u64 n, float keep, float take, u32 nesterov, int rank_row) {
    __shared__ float scratch[WARP];
    u64 matrix = blockIdx.y, first = first_of_thread();
    grads += FLAT[rank_row][matrix], momentum += SLOTS[rank_row][matrix], x += matrix * n;
    float g[ROUNDS][VEC], m[ROUNDS][VEC];
    // These loads come before anything that depends on another load.
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        u64 at = first + round * STRIDE;
        if (at >= n) continue;
        load_streaming(grads + at, g[round]);
        load_streaming(momentum + at, m[round]);
    }
    bool stays = *bad != 0;
    float factor = *clip, squares = 0.0f;
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        u64 at = first + round * STRIDE;
        if (at >= n) continue;
        float direction[VEC];
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            float gradient = __fmul_rn(g[round][i], factor);
            m[round][i] = lerp(m[round][i], gradient, take);
            direction[i] = nesterov ? lerp(gradient, m[round][i], keep) : m[round][i];
            if (stays) direction[i] = 0.0f;
            squares = fmaf(direction[i], direction[i], squares);
        }
        if (!stays) store_streaming(momentum + at, m[round]);
        store(x + at, direction);
    }
    squares = block_sum(squares, scratch);
    if (threadIdx.x == 0) partials[matrix * gridDim.x + blockIdx.x] = squares;
}

// Divides every matrix x[matrix, n] by its Frobenius norm, or by eps if the norm is less, times `safety`.
extern "C" __global__ void __launch_bounds__(THREADS)
muon_normalize(T *x, const float *partials, u64 n, float eps, float safety) {
    __shared__ float scratch[WARP];
    u64 matrix = blockIdx.y, first = first_of_thread();
    x += matrix * n, partials += matrix * gridDim.x;
    float direction[ROUNDS][VEC];
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        u64 at = first + round * STRIDE;
        if (at < n) load(x + at, direction[round]);
    }
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < gridDim.x; i += THREADS) squares += partials[i];
    float norm = __fmul_rn(fmaxf(__fsqrt_rn(block_sum(squares, scratch)), eps), safety);
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        u64 at = first + round * STRIDE;
        if (at >= n) continue;
#pragma unroll
        for (int i = 0; i < VEC; i++) direction[round][i] = __fdiv_rn(direction[round][i], norm);
        store(x + at, direction[round]);
    }
}
