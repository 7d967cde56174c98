// The soft cap y = cap·tanh(x / cap), and its gradient.
#include "common.cuh"

// x, y: n elements. y may be the same memory as x.
extern "C" __global__ void soft_cap(const T *x, T *y, int n, float cap) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float value[VEC];
    load(x + at, value);
#pragma unroll
    for (int i = 0; i < VEC; i++) value[i] = cap * tanhf(value[i] / cap);
    store(y + at, value);
}

// dx = dy·(1 − tanh²(x / cap)). x, dy, dx: n elements. dx may be the same memory as x or dy.
extern "C" __global__ void soft_cap_grad(const T *x, const T *dy, T *dx, int n, float cap) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float value[VEC], upstream[VEC];
    load(x + at, value);
    load(dy + at, upstream);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        float t = tanhf(value[i] / cap);
        upstream[i] *= fmaf(-t, t, 1.0f);
    }
    store(dx + at, upstream);
}
