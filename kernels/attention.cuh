// What the attention kernels share: the order of their blocks, who sees what, what is dropped.
//
// Definitions: CAUSAL (1: query t sees keys 0 to t; 0: the keys of its span), DROPOUT (0 or 1).
#pragma once
#include "common.cuh"

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;

// x / n for numbers below 2^16, from `reciprocal`, which is 2^32 / n + 1, or 0 for n = 1.
__device__ __forceinline__ int divide(u32 x, u32 reciprocal) {
    return int(reciprocal == 0 ? x : __umulhi(x, reciprocal));
}

// The part of the work that a block does: a head of a sequence, and a tile of its rows, counted from the one with most
// to do.
struct Place {
    int head, sequence, tile;
};

// The grid is [heads, section, tiles·sections], and its blocks start in this order: through sections of sequences, in
// each through tiles of the same length in all heads, long ones first. So the tiles of a head and the heads of a group
// meet their rows in the second-level cache, and no long block runs alone at the end. (The last section may have
// fewer sequences.)
__device__ __forceinline__ Place place_of_block(int tiles, u32 by_tiles) {
    int section = divide(blockIdx.z, by_tiles);
    return {int(blockIdx.x), int(section * gridDim.y + blockIdx.y), int(blockIdx.z - section * tiles)};
}

// Blocks that run on a multiprocessor at the same time turn their warps by different numbers, so that the warps with
// most to do are not all in the same quarter of it. `by_processors` is the reciprocal of the multiprocessors, roughly.
__device__ __forceinline__ int turn_of_block(u32 by_processors) {
    u32 id = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    return int(__umulhi(id, by_processors) % 4);
}

// The keys [first, end) that a query sees.
struct Seen {
    int first, end;
};

// What query `t` of a sequence sees. `spans` are those of its sequence; queries beyond the sequence see nothing.
__device__ __forceinline__ Seen seen_by(const uint2 *spans, int t, int seq_len) {
    if (t >= seq_len) return {0, 0};
    if (CAUSAL) return {0, t + 1};
    uint2 span = spans[t];
    int end = min(span.y, u32(seq_len));
    return {int(min(span.x, u32(end))), end};
}

// The smallest range that holds what any of the queries [from, to) sees, found by every warp of a block for itself.
__device__ __forceinline__ Seen seen_by_any(const uint2 *spans, int from, int to, int seq_len) {
    to = min(to, seq_len);
    if (CAUSAL) return {0, to};
    Seen all = {seq_len, 0};
    for (int t = from + threadIdx.x % WARP; t < to; t += WARP) {
        Seen one = seen_by(spans, t, seq_len);
        if (one.first < one.end) all = {min(all.first, one.first), max(all.end, one.end)};
    }
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        all.first = min(all.first, __shfl_xor_sync(FULL_WARP, all.first, step));
        all.end = max(all.end, __shfl_xor_sync(FULL_WARP, all.end, step));
    }
    return all;
}

// The smallest range that holds all queries that see any of the keys [from, to), likewise.
__device__ __forceinline__ Seen seers_of_any(const uint2 *spans, int from, int to, int seq_len) {
    if (CAUSAL) return {from, seq_len};
    Seen all = {seq_len, 0};
    for (int t = threadIdx.x % WARP; t < seq_len; t += WARP) {
        Seen one = seen_by(spans, t, seq_len);
        if (one.first < to && one.end > from) all = {min(all.first, t), max(all.end, t + 1)};
    }
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        all.first = min(all.first, __shfl_xor_sync(FULL_WARP, all.first, step));
        all.end = max(all.end, __shfl_xor_sync(FULL_WARP, all.end, step));
    }
    return all;
}

// What 32 neighbouring queries see, one per lane.
struct Sight {
    int t;        // The first of them.
    int seq_len;
    Seen mine;    // What query t + lane sees.

    __device__ __forceinline__ Sight(const uint2 *spans, int t, int seq_len)
        : t(t), seq_len(seq_len), mine(seen_by(spans, t + threadIdx.x % WARP, seq_len)) {}

    // Whether any of them sees any of the keys [key, key + count).
    __device__ __forceinline__ bool any(int key, int count) const {
        if (CAUSAL) return key < min(t + WARP, seq_len);
        return __any_sync(FULL_WARP, mine.first < key + count && mine.end > key);
    }
    // Whether all of them, but for those beyond the sequence, see all of these keys.
    __device__ __forceinline__ bool all(int key, int count) const {
        if (CAUSAL) return key + count <= t + 1;
        bool beyond = t + int(threadIdx.x % WARP) >= seq_len;
        return __all_sync(FULL_WARP, beyond || (mine.first <= key && mine.end >= key + count));
    }
    // What query t + i sees.
    __device__ __forceinline__ Seen of(int i) const {
        if (CAUSAL) return {0, t + i + 1};
        return {__shfl_sync(FULL_WARP, mine.first, i), __shfl_sync(FULL_WARP, mine.end, i)};
    }
};

__device__ __forceinline__ bool sees(Seen seen, int key) { return (CAUSAL || key >= seen.first) && key < seen.end; }

// Shifts into the top of either half of `bits` whether the draw in that half of `word` is kept: at least `threshold`,
// which stands in both halves.
__device__ __forceinline__ u32 append_kept(u32 bits, u32 word, u32 threshold) {
    constexpr u32 TOP = 0x80008000u;
    u32 rest = (word | TOP) - (threshold & ~TOP);
    u32 kept = (word & ~threshold) | (~(word ^ threshold) & rest);
    return (bits >> 1 & ~TOP) | (kept & TOP);
}
__device__ __forceinline__ u32 append_kept(u32 bits, const uint4 &draws, u32 threshold) {
    bits = append_kept(bits, draws.x, threshold);
    bits = append_kept(bits, draws.y, threshold);
    bits = append_kept(bits, draws.z, threshold);
    return append_kept(bits, draws.w, threshold);
}

// Dropout of the probabilities of one head.
struct Dropout {
    Drops drops;
    u32 thresholds;         // In both halves.
    u32 step, sequence;
    u32 row;                // The row of query 0.

    __device__ __forceinline__ Dropout(const Drops &drops, u32 step, u32 sequence, int head, int seq_len)
        : drops(drops), thresholds(min(drops.threshold, 0xffffu) * 0x10001u), step(step), sequence(sequence),
          row(u32(head) * u32(seq_len)) {}

    // Which of the 8·CALLS keys from `key` on are kept for query t: bit 4·c + w says it of key 8·c + 2·w, bit
    // 16 + 4·c + w of the next one. (`key` is a multiple of 8, CALLS at most 4.)
    template <int CALLS> __device__ __forceinline__ u32 kept(int t, int key) const {
        u32 bits = 0;
#pragma unroll
        for (int call = 0; call < CALLS; call++)
            bits = append_kept(bits, draws(drops, step, sequence, row + t, key / 8 + call), thresholds);
        return bits >> (16 - 4 * CALLS);
    }

    // The part of probabilities that is kept, which undoes the scale of the others.
    __device__ __forceinline__ float kept_part() const { return float(65536u - drops.threshold) / 65536.0f; }
};
