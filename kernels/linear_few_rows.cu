// y = f(x·Wᵀ + b) on at most 16 rows in bf16, for generation. It takes as long as reading W, so every byte of
// W is read once, 16 at a time.
//
// A block computes 8 outputs of all rows; its warps divide the inputs among themselves in blocks of 32. Lane
// 4·g + q loads inputs 8q to 8q + 7 of a block, for output g and for rows g and g + 8: four pairs of
// neighbors, two for each of two products (mma.cuh). A product sums over its inputs in any order, so it does
// not matter that the tensor core calls them 2q, 2q + 1, 2q + 8 and 2q + 9, as long as x and W agree.
//
// Definitions: WARPS (per block), UNROLL (blocks of inputs that a warp loads at once), UPPER (1 if there are
// more than 8 rows), THREADS, BIAS (1 if b is added), SUMS (2: y = f(gate) ⊙ up, else 1), and ACTIVATION if
// there is an f, a functor of activation.cuh.
#include "activation.cuh"
#include "mma.cuh"

constexpr int OUTPUTS = 8, INPUTS = 32, ROWS = UPPER ? 16 : 8;

__device__ __forceinline__ float activate(float x) {
#ifdef ACTIVATION
    return ACTIVATION::at<bf16>(x).value;
#else
    return x;
#endif
}

// Loads the weights of a warp's UNROLL blocks of inputs from `from` on. `w` points to this lane's output and
// first input.
__device__ __forceinline__ void load_weights(const bf16 *w, i64 to_second, int from, int inputs,
                                             uint4 (&weights)[SUMS][UNROLL]) {
#pragma unroll
    for (int n = 0; n < UNROLL; n++) {
        int at = from + n * WARPS * INPUTS;
#pragma unroll
        for (int s = 0; s < SUMS; s++) {
            bool live = at < inputs;
            weights[s][n] =
                live ? *reinterpret_cast<const uint4 *>(w + s * to_second + at) : make_uint4(0, 0, 0, 0);
        }
    }
}

// x: [rows, inputs]; w: [SUMS, outputs, inputs]; b: [SUMS, outputs]; y: [rows, outputs]. inputs is a multiple
// of 32, outputs of 8. There are outputs / 8 blocks. Partial sums of warps are added in the order of the
// warps.
extern "C" __global__ void __launch_bounds__(THREADS)
    linear_few_rows(const bf16 *x, const bf16 *__restrict__ w, const float *__restrict__ b,
                    bf16 *__restrict__ y, int rows, int outputs, int inputs) {
    __shared__ float partials[SUMS][WARPS][ROWS][OUTPUTS];
    int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, q = threadIdx.x % 4;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    const bf16 *of_output = w + (i64(blockIdx.x) * OUTPUTS + g) * inputs + q * 8;
    i64 to_second = i64(outputs) * inputs;
    const bf16 *lower = x + i64(g) * inputs + q * 8, *upper = lower + i64(8) * inputs;
    bool has_lower = g < rows, has_upper = UPPER && g + 8 < rows;
    float c[SUMS][4] = {};
    int first = warp * INPUTS;
    uint4 weights[SUMS][UNROLL];
    // Loads the weights before the rows are there, while the previous kernel ends.
    let_next_begin();
    load_weights(of_output, to_second, first, inputs, weights);
    wait_for_previous();
    for (int from = first; from < inputs; from += WARPS * INPUTS * UNROLL) {
        if (from > first) load_weights(of_output, to_second, from, inputs, weights);
        uint4 low[UNROLL], high[UNROLL];
#pragma unroll
        for (int n = 0; n < UNROLL; n++) {
            int at = from + n * WARPS * INPUTS;
            bool live = at < inputs;
            low[n] = live && has_lower ? *reinterpret_cast<const uint4 *>(lower + at) : zero;
            high[n] = live && has_upper ? *reinterpret_cast<const uint4 *>(upper + at) : zero;
        }
#pragma unroll
        for (int n = 0; n < UNROLL; n++) {
            u32 first[4] = {low[n].x, high[n].x, low[n].y, high[n].y};
            u32 second[4] = {low[n].z, high[n].z, low[n].w, high[n].w};
#pragma unroll
            for (int s = 0; s < SUMS; s++) {
                mma(c[s], first, weights[s][n].x, weights[s][n].y);
                mma(c[s], second, weights[s][n].z, weights[s][n].w);
            }
        }
    }
#pragma unroll
    for (int s = 0; s < SUMS; s++) {
        partials[s][warp][g][2 * q] = c[s][0];
        partials[s][warp][g][2 * q + 1] = c[s][1];
        if (UPPER) {
            partials[s][warp][(g + 8) % ROWS][2 * q] = c[s][2];
            partials[s][warp][(g + 8) % ROWS][2 * q + 1] = c[s][3];
        }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < rows * OUTPUTS; at += THREADS) {
        int row = at / OUTPUTS, output = at % OUTPUTS, column = blockIdx.x * OUTPUTS + output;
        float sums[SUMS];
#pragma unroll
        for (int s = 0; s < SUMS; s++) {
            sums[s] = BIAS ? b[s * outputs + column] : 0.0f;
#pragma unroll
            for (int n = 0; n < WARPS; n++) sums[s] += partials[s][n][row][output];
        }
        float value = activate(sums[0]);
        if (SUMS == 2) value *= sums[SUMS - 1];
        y[i64(row) * outputs + column] = down<bf16>(value);
    }
}
