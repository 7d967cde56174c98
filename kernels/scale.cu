// Multiplies a tensor by a constant: y = factor·x.
#include "common.cuh"

// x, y: n elements. y may be the same memory as x.
extern "C" __global__ void scale(const T *x, T *y, int n, float factor) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float value[VEC];
    load(x + at, value);
#pragma unroll
    for (int i = 0; i < VEC; i++) value[i] *= factor;
    store(y + at, value);
}
