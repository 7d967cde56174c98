// Writes the keys and values of prompts into a cache, for generation.
//
// Definitions: T, HEAD_DIM, VEC (a divisor of HEAD_DIM).
#include "common.cuh"

// cache[b, t] = keys and values of row t of the prompt of sample b; `share` neighboring samples share a
// prompt. packed: [prompts·rows, (query + 2·kv)·HEAD_DIM]. In the grid, x counts rows of a prompt, y samples.
extern "C" __global__ void cache_fill(const T *__restrict__ packed, T *__restrict__ cache, int query, int kv,
                                      int capacity, int share) {
    int row = blockIdx.x, sample = blockIdx.y, kept = 2 * kv * HEAD_DIM;
    i64 of_prompt = i64(sample / share) * gridDim.x + row;
    T *to = cache + (i64(sample) * capacity + row) * kept;
    const T *from = packed + of_prompt * (query * HEAD_DIM + kept) + query * HEAD_DIM;
    for (int at = threadIdx.x * VEC; at < kept; at += blockDim.x * VEC)
        *reinterpret_cast<Pack<T, VEC> *>(to + at) = *reinterpret_cast<const Pack<T, VEC> *>(from + at);
}
