// The last step of sums over rows: adds up the partial sums of blocks, in an order fixed by their number.
//
// Definitions: COLUMNS (columns per block) and ROWS (threads per column), both the size of a warp.
#include "common.cuh"

static_assert(COLUMNS == WARP && ROWS == WARP,
              "every warp reads one row of columns, then finishes one column");

// partials: [count, width]. Columns before `split` go to first [split], the others to second [width − split].
// A bit set in `adds` (1: first, 2: second) adds the sums to the old values.
extern "C" __global__ void __launch_bounds__(COLUMNS *ROWS)
    sum_partials(const float *partials, float *first, float *second, int count, int width, int split,
                 u32 adds) {
    __shared__ float sums[ROWS][COLUMNS + 1];
    int lane = threadIdx.x % COLUMNS, row = threadIdx.x / COLUMNS;
    int column = blockIdx.x * COLUMNS + lane;
    float sum = 0.0f;
    if (column < width) {
#pragma unroll 8
        for (int r = row; r < count; r += ROWS) sum += partials[i64(r) * width + column];
    }
    sums[row][lane] = sum;
    __syncthreads();
    // Every warp finishes one column.
    sum = warp_sum(sums[lane][row]);
    column = blockIdx.x * COLUMNS + row;
    if (lane != 0 || column >= width) return;
    float *to = column < split ? first + column : second + (column - split);
    bool add = (column < split ? adds : adds >> 1) & 1;
    *to = add ? *to + sum : sum;
}
