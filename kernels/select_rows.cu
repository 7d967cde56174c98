// Selects the row of each prompt's last token, for generation.
//
// Definitions: T, VEC (a divisor of the width of a row).
#include "common.cuh"

// y[b] = row positions[b] of the prompt of sample b; `share` neighboring samples share a prompt. NaN if the
// prompt has no such row. x: [prompts·rows, width]. There is one block per sample.
extern "C" __global__ void select_rows(const T *__restrict__ x, const u32 *__restrict__ positions,
                                       T *__restrict__ y, int rows, int width, int share) {
    u32 position = positions[blockIdx.x];
    const T *from = x + (i64(blockIdx.x / share) * rows + position) * width;
    y += i64(blockIdx.x) * width;
    for (int at = threadIdx.x * VEC; at < width; at += blockDim.x * VEC) {
        float row[VEC];
        if (position < rows) {
            load(from + at, row);
        } else {
            for (int c = 0; c < VEC; c++) row[c] = infinity() - infinity();
        }
        store(y + at, row);
    }
}
