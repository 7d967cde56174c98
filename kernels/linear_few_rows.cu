// Generation: y = x·Wᵀ of at most 16 rows in bf16. The time is that of reading W, so every byte of it is read
// once, 16 at a time.
//
// A block computes 8 outputs of all rows; its warps divide the inputs among themselves, in blocks of 32. A
// lane 4·g + q loads inputs 8q to 8q + 7 of a block, of output g and of rows g and g + 8: four pairs of
// neighbours, two for each of two products (mma.cuh). A product sums over its inputs in any order, so it does
// not matter that the tensor core calls them 2q, 2q + 1, 2q + 8 and 2q + 9, as long as x and W agree.
//
// Definitions: WARPS (per block), UNROLL (blocks of inputs that a warp loads at once), UPPER (1 if there are
// more than 8 rows), THREADS.
#include "mma.cuh"

constexpr int OUTPUTS = 8, INPUTS = 32, ROWS = UPPER ? 16 : 8;

// x: [rows, inputs]; w: [outputs, inputs]; y: [rows, outputs]. inputs is a multiple of 32, outputs of 8.
// Blocks: outputs / 8. Partial sums of warps are added in their order.
extern "C" __global__ void __launch_bounds__(THREADS)
    linear_few_rows(const bf16 *__restrict__ x, const bf16 *__restrict__ w, bf16 *__restrict__ y, int rows,
                    int outputs, int inputs) {
    __shared__ float partials[WARPS][ROWS][OUTPUTS];
    int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, q = threadIdx.x % 4;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    const bf16 *of_output = w + (i64(blockIdx.x) * OUTPUTS + g) * inputs + q * 8;
    const bf16 *lower = x + i64(g) * inputs + q * 8, *upper = lower + i64(8) * inputs;
    bool has_lower = g < rows, has_upper = UPPER && g + 8 < rows;
    float c[4] = {};
    for (int from = warp * INPUTS; from < inputs; from += WARPS * INPUTS * UNROLL) {
        uint4 weights[UNROLL], low[UNROLL], high[UNROLL];
#pragma unroll
        for (int n = 0; n < UNROLL; n++) {
            int at = from + n * WARPS * INPUTS;
            bool live = at < inputs;
            weights[n] = live ? *reinterpret_cast<const uint4 *>(of_output + at) : zero;
            low[n] = live && has_lower ? *reinterpret_cast<const uint4 *>(lower + at) : zero;
            high[n] = live && has_upper ? *reinterpret_cast<const uint4 *>(upper + at) : zero;
        }
#pragma unroll
        for (int n = 0; n < UNROLL; n++) {
            u32 first[4] = {low[n].x, high[n].x, low[n].y, high[n].y};
            mma(c, first, weights[n].x, weights[n].y);
            u32 second[4] = {low[n].z, high[n].z, low[n].w, high[n].w};
            mma(c, second, weights[n].z, weights[n].w);
        }
    }
    partials[warp][g][2 * q] = c[0];
    partials[warp][g][2 * q + 1] = c[1];
    if (UPPER) {
        partials[warp][(g + 8) % ROWS][2 * q] = c[2];
        partials[warp][(g + 8) % ROWS][2 * q + 1] = c[3];
    }
    __syncthreads();
    for (int at = threadIdx.x; at < rows * OUTPUTS; at += THREADS) {
        int row = at / OUTPUTS, output = at % OUTPUTS;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < WARPS; n++) sum += partials[n][row][output];
        y[i64(row) * outputs + blockIdx.x * OUTPUTS + output] = down<bf16>(sum);
    }
}
