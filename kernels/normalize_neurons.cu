// NorMuon's normalization of neurons, as in src/engine/ops/normalize_neurons.rs. MATRIX_COLUMNS is the width
// of a row in memory; a block of `average_rows` has ROWS_PER_BLOCK warps, one per row.
#include "matrices.cuh"

// Neighbors that a thread loads at once from a row.
constexpr int ROW_VEC = MATRIX_COLUMNS % VEC == 0 ? VEC : 1;

// averages[first of row] ← keep·averages + take·mean with the mean of `columns` squares of the row of
// x[matrix, rows, MATRIX_COLUMNS], and scratch[matrix, row] = (mean, 1 / (√average + eps)). If bad[1] is set,
// averages stay.
extern "C" __global__ void __launch_bounds__(ROWS_PER_BLOCK * WARP)
average_rows(const T *x, const u32 *bad, float *averages, float2 *scratch, u32 rows, float columns,
             float keep, float take, float eps, int rank_row) {
    u32 row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (row >= rows) return;
    u64 matrix = blockIdx.y, at = (matrix * rows + row) * MATRIX_COLUMNS;
    float squares = 0.0f;
    for (u32 column = lane * ROW_VEC; column < MATRIX_COLUMNS; column += WARP * ROW_VEC) {
        float part[ROW_VEC];
        load(x + at + column, part);
#pragma unroll
        for (int i = 0; i < ROW_VEC; i++) squares = fmaf(part[i], part[i], squares);
    }
    float mean = __fdiv_rn(warp_sum(squares), columns);
    if (lane != 0) return;
    float *average = averages + SLOTS[rank_row][matrix] + u64(row) * MATRIX_COLUMNS;
    float next = fmaf(keep, *average, __fmul_rn(take, mean));
    if (*bad == 0) *average = next;
    scratch[matrix * rows + row] = make_float2(mean, __fdiv_rn(1.0f, __fsqrt_rn(next) + eps));
}

// y = x · scratch.y of the row · one factor per matrix [matrix, n], with which y has the Frobenius norm of x.
extern "C" __global__ void __launch_bounds__(THREADS)
divide_rows(const T *x, const float2 *scratch, T *y, u64 n, u32 rows, float smallest) {
    __shared__ float memory[WARP];
    u64 matrix = blockIdx.y, first = first_of_thread();
    x += matrix * n, y += matrix * n, scratch += matrix * rows;
    float values[ROUNDS][VEC];
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        u64 at = first + round * STRIDE;
        if (at < n) load(x + at, values[round]);
    }
    float before = 0.0f, after = 0.0f;
    for (u32 row = threadIdx.x; row < rows; row += THREADS) {
        float2 of_row = scratch[row];
        before += of_row.x;
        after = fmaf(of_row.x * of_row.y, of_row.y, after);
    }
    before = block_sum(before, memory), after = block_sum(after, memory);
    float factor = __fsqrt_rn(before / fmaxf(after, smallest));
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        u64 at = first + round * STRIDE;
        if (at >= n) continue;
#pragma unroll
        for (int i = 0; i < VEC; i++) values[round][i] *= scratch[(at + i) / MATRIX_COLUMNS].y * factor;
        store(y + at, values[round]);
    }
}
