// C = factor·A·B, with ADD plus a factor of other matrices. It serves the few shapes for which the library
// has no algorithm, such as odd widths in bf16. It is not tuned. Sums are in fp32, in the order of k.
//
// Definitions: LEFT, RIGHT, OUT (formats), AT, BT (factors are stored transposed), ADD, SCALED (A and B have
// scales), SIDE and ROWS (a block computes SIDE × SIDE elements of C with SIDE × ROWS threads).
#include "fp8.cuh"

constexpr int DEPTH = SIDE; // Terms summed at a time: a thread column loads one column of A's tile.

// Returns the place of element (row, column) in a matrix with `columns` columns, or, if the matrix is stored
// transposed, in rows of `rows` elements.
template <bool transposed> __device__ __forceinline__ i64 place(int row, int column, int rows, int columns) {
    return transposed ? i64(column) * rows + row : i64(row) * columns + column;
}

// c = factor·a·b, with ADD plus addend_factor·addend, which may be c. With SCALED, the factors also have
// scales of their own. Each z of the grid is one product of a batch.
extern "C" __global__ void product(const LEFT *a /* (m, k), or (k, m) with AT */,
                                   const RIGHT *b /* (k, n), or (n, k) with BT */, OUT *c /* (m, n) */,
                                   const OUT *addend /* (m, n) */, int m, int n, int k, float factor,
                                   float addend_factor, const float *a_scale, const float *b_scale) {
    if (SCALED) factor *= *a_scale * *b_scale;
    __shared__ float left[SIDE][DEPTH + 1], right[DEPTH][SIDE + 1];
    i64 index = blockIdx.z;
    a += index * m * k, b += index * k * n, c += index * m * n, addend += index * m * n;
    int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    int first_row = blockIdx.y * SIDE, first_column = blockIdx.x * SIDE;
    float sum[SIDE / ROWS] = {};
    for (int start = 0; start < k; start += DEPTH) {
        for (int i = y; i < SIDE; i += ROWS) {
            int row = first_row + i, column = first_column + x;
            left[i][x] = row < m && start + x < k ? up(a[place<AT>(row, start + x, m, k)]) : 0.0f;
            right[i][x] = start + i < k && column < n ? up(b[place<BT>(start + i, column, k, n)]) : 0.0f;
        }
        __syncthreads();
        for (int d = 0; d < DEPTH; d++) {
#pragma unroll
            for (int i = 0; i < SIDE / ROWS; i++) sum[i] = fmaf(left[y + i * ROWS][d], right[d][x], sum[i]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < SIDE / ROWS; i++) {
        int row = first_row + y + i * ROWS, column = first_column + x;
        if (row >= m || column >= n) continue;
        i64 at = i64(row) * n + column;
        // Factors of 1 leave the bits of the sum.
        c[at] = down<OUT>(ADD ? fmaf(factor, sum[i], addend_factor * up(addend[at])) : factor * sum[i]);
    }
}
