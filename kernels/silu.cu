// The sigmoid linear unit y = x·σ(x), and its gradient.
#include "activation.cuh"

// x, y: n elements. y may lie over x.
extern "C" __global__ void silu(const T *x, T *y, int n) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float value[VEC];
    load(x + at, value);
#pragma unroll
    for (int i = 0; i < VEC; i++) value[i] *= sigmoid<T>(value[i]);
    store(y + at, value);
}

// dx = dy ⊙ slope(x). x, dy, dx: n elements. dx may lie over x or dy.
extern "C" __global__ void silu_grad(const T *x, const T *dy, T *dx, int n) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float value[VEC], upstream[VEC];
    load(x + at, value);
    load(dy + at, upstream);
#pragma unroll
    for (int i = 0; i < VEC; i++) upstream[i] *= silu_slope(value[i], sigmoid<T>(value[i]));
    store(dx + at, upstream);
}
