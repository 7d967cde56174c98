// Adds a bias to every row, y = x + b, and computes its gradient.
//
// Definitions: T, WIDTH (elements of a row), VEC (elements that a thread moves at once, a divisor of WIDTH)
// and for the gradient THREADS (per block).
#include "common.cuh"

// x, y: [rows, WIDTH], n elements; b: [WIDTH]. y may be the same memory as x.
extern "C" __global__ void add_bias(const T *x, T *y, int n, const float *__restrict__ b) {
    u32 at = (block_from_last() * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float value[VEC], bias[VEC];
    load(x + at, value);
    load(b + at % WIDTH, bias);
#pragma unroll
    for (int c = 0; c < VEC; c++) value[c] += bias[c];
    store(y + at, value);
}

#ifdef THREADS
// Blocks that share a run of rows, each with its own columns.
constexpr int CHUNKS = (WIDTH / VEC + THREADS - 1) / THREADS;

// The blocks of run k write Σ dy over its `run` rows to row k of the partials. dy: [rows, WIDTH]; partials:
// [runs, WIDTH].
extern "C" __global__ void __launch_bounds__(THREADS)
    add_bias_grad(const T *__restrict__ dy, float *__restrict__ partials, int rows, int run) {
    int k = blockIdx.x / CHUNKS, column = (int(blockIdx.x) % CHUNKS * THREADS + int(threadIdx.x)) * VEC;
    if (column >= WIDTH) return;
    int last = min((k + 1) * run, rows);
    float sum[VEC] = {};
#pragma unroll 4
    for (int row = k * run; row < last; row++) {
        float d[VEC];
        load(dy + i64(row) * WIDTH + column, d);
#pragma unroll
        for (int c = 0; c < VEC; c++) sum[c] += d[c];
    }
    store(partials + i64(k) * WIDTH + column, sum);
}
#endif
