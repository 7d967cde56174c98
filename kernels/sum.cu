// Scaled sum of a vector, computed in f64 by one block, and its gradient.
//
// Definitions: T, THREADS (in the block that sums).
#include "common.cuh"

// total[1] = scale·Σ x[n], or += if `adds`. The order of addition is fixed by n. The scale comes as the bits
// of an f64; if `count` is not null, it is 1 / count.
extern "C" __global__ void __launch_bounds__(THREADS)
sum(const T *x, T *total, int n, u64 scale, const u32 *count, int adds) {
    __shared__ double sums[THREADS];
    double sum = 0.0;
#pragma unroll 8
    for (int i = threadIdx.x; i < n; i += THREADS) sum += double(up(x[i]));
    sums[threadIdx.x] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x > 0) return;
    double before = adds ? double(up(*total)) : 0.0;
    double factor = count ? 1.0 / double(*count) : __longlong_as_double(i64(scale));
    *total = down<T>(float(before + factor * sums[0]));
}

// dx[n] = scale·d_total[1]. A null d_total stands for 1; if `count` is not null, the scale is 1 / count.
extern "C" __global__ void sum_grad(const T *d_total, T *dx, int n, float scale, const u32 *count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (count) scale = float(1.0 / double(*count));
    dx[i] = down<T>(scale * (d_total ? up(*d_total) : 1.0f));
}
