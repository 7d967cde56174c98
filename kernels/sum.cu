// Scaled sums of a vector, each computed in f64 by one block, and the gradient of the sum of all.
//
// Definitions: T, THREADS (in a block that sums).
#include "common.cuh"

// Adds up a number per thread, in an order fixed by THREADS, and stores *total = scale times the sum, or +=
// if `adds`. The scale comes as the bits of an f64; if `count` is not null, it is 1 / count.
__device__ __forceinline__ void store_total(double sum, T *total, u64 scale, const u32 *count, int adds) {
    __shared__ double sums[THREADS];
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

// total[1] = scale·Σ x[n], or += if `adds`. The order of addition is fixed by n.
extern "C" __global__ void __launch_bounds__(THREADS)
sum(const T *x, T *total, int n, u64 scale, const u32 *count, int adds) {
    double sum = 0.0;
#pragma unroll 8
    for (int i = threadIdx.x; i < n; i += THREADS) sum += double(up(x[i]));
    store_total(sum, total, scale, count, adds);
}

// totals[g] = scale·Σ x[r·len..(r+1)·len] over the rows r with group[r] = g, or += if `adds`: a block per
// total, a warp per row. The order of addition is fixed by the sizes and the groups.
extern "C" __global__ void __launch_bounds__(THREADS)
sum_by_group(const T *x, const u32 *group, T *totals, int rows, int len, u64 scale, const u32 *count,
             int adds) {
    double sum = 0.0;
    for (int r = threadIdx.x / WARP; r < rows; r += THREADS / WARP) {
        if (group[r] != blockIdx.x) continue;
        const T *row = x + i64(r) * len;
#pragma unroll 8
        for (int i = threadIdx.x % WARP; i < len; i += WARP) sum += double(up(row[i]));
    }
    store_total(sum, totals + blockIdx.x, scale, count, adds);
}

// dx[n] = scale·d_total[1]. A null d_total stands for 1; if `count` is not null, the scale is 1 / count.
extern "C" __global__ void sum_grad(const T *d_total, T *dx, int n, float scale, const u32 *count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (count) scale = float(1.0 / double(*count));
    dx[i] = down<T>(scale * (d_total ? up(*d_total) : 1.0f));
}
