// Sum of two tensors: y = a + b.
#include "common.cuh"

extern "C" __global__ void add(const T *a, const T *b, T *y, int n) {
    int at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float left[VEC], right[VEC];
    load(a + at, left);
    load(b + at, right);
#pragma unroll
    for (int i = 0; i < VEC; i++) left[i] += right[i];
    store(y + at, left);
}
