// One of the two halves of a tensor, and its gradient.
//
// Definitions: T, WIDTH (elements of a row of a half) and VEC, a divisor of it. A thread handles one pack.
#include "common.cuh"

// Index in the whole tensor of an element of half 0, given its index in the half.
__device__ __forceinline__ i64 in_both(u32 at) { return i64(at) + i64(at / WIDTH) * WIDTH; }

// y[r] = x[r, index]. x: [rows, 2, WIDTH]; y: [rows, WIDTH], n elements.
extern "C" __global__ void half(const T *__restrict__ x, T *__restrict__ y, int n, u32 index) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float value[VEC];
    load(x + in_both(at) + index * WIDTH, value);
    store(y + at, value);
}

// dx[r, index] = dy[r], zeros in the other half. dy: [rows, WIDTH], n elements; dx: [rows, 2, WIDTH].
extern "C" __global__ void half_grad(const T *__restrict__ dy, T *__restrict__ dx, int n, u32 index) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float value[VEC], zeros[VEC] = {};
    load(dy + at, value);
    store(dx + in_both(at) + index * WIDTH, value);
    store(dx + in_both(at) + (1 - index) * WIDTH, zeros);
}
