// Dropout: y = x times 0 or the inverse of the keep probability, decided by the coordinates of an element.
#include "common.cuh"

// Columns that one call of the generator decides; a thread handles one call.
constexpr int COLUMNS = 8;

// x, y: [rows, width], with VEC a divisor of width; sequences: [rows / rows_of_one]; step: [1]. y may be the
// same memory as x. A row takes `calls` threads; n is the number of all threads.
extern "C" __global__ void dropout(const T *x, const u32 *sequences, const u32 *step, T *y, int n, u32 calls,
                                   u32 width, u32 rows_of_one, u32 key0, u32 key1, u32 threshold,
                                   float scale) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= n) return;
    u32 row = at / calls, call = at - row * calls, sequence = row / rows_of_one;
    Drops drops = {key0, key1, threshold, scale};
    uint4 drawn = draws(drops, *step, sequences[sequence], row - sequence * rows_of_one, call);
    i64 place = i64(row) * width + call * COLUMNS;
    u32 left = min(width - call * COLUMNS, u32(COLUMNS));
#pragma unroll
    for (int c = 0; c < COLUMNS; c += VEC) {
        if (c >= left) break;
        float value[VEC];
        load(x + place + c, value);
#pragma unroll
        for (int i = 0; i < VEC; i++) value[i] *= drop_factor(drops, drawn, c + i);
        store(y + place + c, value);
    }
}
