// The second matrices of adapters, stacked one below the other: B [rows, RANK], whose rows up to ENDS[i]
// belong to matrix i. In the spread matrix [rows, COUNT * RANK], matrix i has the columns from i * RANK, and
// everything else is zero.
//
// Definitions: T, RANK, COUNT, ENDS (COUNT numbers), and ADDS (add to what is there).
#include "common.cuh"

// Returns the matrix that a row belongs to.
__device__ __forceinline__ u32 matrix_of(u32 row) {
    constexpr u32 ends[] = {ENDS};
    u32 matrix = 0;
#pragma unroll
    for (int i = 0; i + 1 < COUNT; i++) matrix += row >= ends[i];
    return matrix;
}

// Spreads B, times a factor. A thread writes one of the `n` elements.
extern "C" __global__ void spread(const T *__restrict__ b, T *__restrict__ to, int n, float factor) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= n) return;
    u32 row = at / (COUNT * RANK), column = at % (COUNT * RANK);
    bool own = column / RANK == matrix_of(row);
    to[at] = own ? down<T>(factor * up(b[row * RANK + column % RANK])) : down<T>(0.0f);
}

// Collects B from its spread matrix of `n` elements, times a factor.
extern "C" __global__ void collect(const T *__restrict__ from, T *__restrict__ b, int n, float factor) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= n) return;
    u32 row = at / (COUNT * RANK), column = at % (COUNT * RANK);
    if (column / RANK != matrix_of(row)) return;
    T *to = b + row * RANK + column % RANK;
    *to = down<T>(factor * up(from[at]) + (ADDS ? up(*to) : 0.0f));
}
