// Generation: keys and values of prompts and of new tokens, written into a cache.
//
// Definitions: T, HEAD_DIM, VEC (a divisor of it).
#include "common.cuh"

// Copies `count` elements, a multiple of VEC, with all threads of the block.
__device__ __forceinline__ void copy(T *to, const T *from, int count) {
    for (int at = threadIdx.x * VEC; at < count; at += blockDim.x * VEC)
        *reinterpret_cast<Pack<T, VEC> *>(to + at) = *reinterpret_cast<const Pack<T, VEC> *>(from + at);
}

// cache[b, positions[b]] = keys and values of row b. packed: [batch, (query + 2·kv)·HEAD_DIM]; positions:
// [batch]; cache: [batch, capacity, 2·kv·HEAD_DIM]. Rows beyond the capacity are dropped.
extern "C" __global__ void cache_append(const T *__restrict__ packed, const u32 *__restrict__ positions,
                                        T *__restrict__ cache, int query, int kv, u32 capacity) {
    int batch = blockIdx.x, kept = 2 * kv * HEAD_DIM;
    if (positions[batch] >= capacity) return;
    const T *from = packed + i64(batch) * (query * HEAD_DIM + kept) + query * HEAD_DIM;
    copy(cache + (i64(batch) * capacity + positions[batch]) * kept, from, kept);
}

// cache[b, t] = keys and values of row t of the prompt of sample b, which it shares with `share` neighbours.
// packed: [prompts·rows, (query + 2·kv)·HEAD_DIM]. Blocks: x counts rows of a prompt, y samples.
extern "C" __global__ void cache_fill(const T *__restrict__ packed, T *__restrict__ cache, int query, int kv,
                                      int capacity, int share) {
    int row = blockIdx.x, sample = blockIdx.y, kept = 2 * kv * HEAD_DIM;
    i64 from = i64(sample / share) * gridDim.x + row;
    copy(cache + (i64(sample) * capacity + row) * kept,
         packed + from * (query * HEAD_DIM + kept) + query * HEAD_DIM, kept);
}
