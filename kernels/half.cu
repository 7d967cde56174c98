// Selects one half of the middle dimension of x [rows, 2, WIDTH], such as gate or up. Unrelated to the fp16
// type.
//
// Definitions: T, WIDTH, and VEC (elements that a thread loads and stores at once, a divisor of WIDTH).
#include "common.cuh"

// Returns the index in half 0 of x [rows, 2, WIDTH] of the element at index `at` in y [rows, WIDTH].
__device__ __forceinline__ i64 index_in_x(u32 at) { return i64(at) + i64(at / WIDTH) * WIDTH; }

// y[rows, WIDTH] = x[:, index, :] for x [rows, 2, WIDTH]; n is the number of elements of y.
extern "C" __global__ void half(const T *__restrict__ x, T *__restrict__ y, int n, u32 index) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float value[VEC];
    load(x + index_in_x(at) + index * WIDTH, value);
    store(y + at, value);
}

// dx[:, index, :] = dy[rows, WIDTH], with zeros in the other half of dx [rows, 2, WIDTH]; n is the number of
// elements of dy.
extern "C" __global__ void half_grad(const T *__restrict__ dy, T *__restrict__ dx, int n, u32 index) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float value[VEC], zeros[VEC] = {};
    load(dy + at, value);
    store(dx + index_in_x(at) + index * WIDTH, value);
    store(dx + index_in_x(at) + (1 - index) * WIDTH, zeros);
}
