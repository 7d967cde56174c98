// Elementwise product of two tensors: y = a ⊙ b.
#include "common.cuh"

// a, b, y: n elements. y may be the same memory as a or b.
extern "C" __global__ void mul(const T *a, const T *b, T *y, int n) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float left[VEC], right[VEC];
    load(a + at, left);
    load(b + at, right);
#pragma unroll
    for (int i = 0; i < VEC; i++) left[i] *= right[i];
    store(y + at, left);
}
