// Shared by the attention kernels: products, the order of blocks, the mask, dropout, and the soft cap of
// scores.
//
// Definitions: CAUSAL (1: query t attends to keys 0 to t; 0: to the keys of its span), BRANCHES (1: spans
// have a gap; only forward), DROPOUT (0 or 1), SOFT_CAP (1: a score s = q·k/√dim becomes cap·tanh(s / cap);
// 0: `soft_cap` is not read).
#pragma once
#include "common.cuh"

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;

// Returns x / n for numbers below 2^16. `reciprocal` is 2^32 / n + 1, or 0 for n = 1.
__device__ __forceinline__ int divide(u32 x, u32 reciprocal) {
    return int(reciprocal == 0 ? x : __umulhi(x, reciprocal));
}

// Reductions over the four lanes that hold a row of a product's result.
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) { return warp_reduce<4>(x, Add()); }
// Before the first visible key, probabilities are relative to 1.
__device__ __forceinline__ float finite(float running_max) {
    return running_max == -infinity() ? 0.0f : running_max;
}

// The work of a block: a head of a sequence, and a tile of its rows. Tile 0 has the most work.
struct BlockWork {
    int head, sequence, tile;
};

// The grid is [heads, section, tiles·sections], and its blocks start in this order: section by section of
// sequences, and within a section tile by tile over all heads, starting with the tiles that have the most
// work. So the tiles of a head and the heads of a group find their rows in the L2 cache, and no long block
// runs alone at the end. (The last section may have fewer sequences.)
__device__ __forceinline__ BlockWork work_of_block(int tiles, u32 inv_tiles) {
    int section = divide(blockIdx.z, inv_tiles);
    return {int(blockIdx.x), int(section * gridDim.y + blockIdx.y), int(blockIdx.z - section * tiles)};
}

// Returns a rotation of the assignment of rows to warps. Blocks that run on one SM at the same time get
// different rotations, so that the warps with the most work are not all in the same quarter of the SM.
// `inv_sms` is roughly the reciprocal of the number of SMs.
__device__ __forceinline__ int warp_rotation(u32 inv_sms) {
    u32 id = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    return int(__umulhi(id, inv_sms) % 4);
}

// A range [first, end) of keys, or of queries.
struct KeyRange {
    int first, end;
};

// The keys of a query: first and end, and with BRANCHES those of the gap, whose keys it does not see.
#if BRANCHES
using Span = uint4;
#else
using Span = uint2;
#endif

// Returns the keys that query `t` of a sequence attends to, and those in their gap. `spans` belongs to that
// sequence. Queries beyond the sequence attend to no key.
__device__ __forceinline__ KeyRange visible_keys(const Span *spans, int t, int seq_len) {
    if (t >= seq_len) return {0, 0};
    if (CAUSAL) return {0, t + 1};
    Span span = spans[t];
    int end = min(span.y, u32(seq_len));
    return {int(min(span.x, u32(end))), end};
}

// Returns the keys in the gap of query `t`; none without BRANCHES.
__device__ __forceinline__ KeyRange hidden_keys(const Span *spans, int t, int seq_len) {
#if BRANCHES
    if (t < seq_len) return {int(spans[t].z), int(spans[t].w)};
#endif
    return {0, 0};
}

// Returns the smallest range that contains all keys visible to any of the queries [from, to). Every warp of a
// block computes it.
__device__ __forceinline__ KeyRange keys_visible_to_any(const Span *spans, int from, int to, int seq_len) {
    to = min(to, seq_len);
    if (CAUSAL) return {0, to};
    KeyRange all = {seq_len, 0};
    for (int t = from + threadIdx.x % WARP; t < to; t += WARP) {
        KeyRange one = visible_keys(spans, t, seq_len);
        if (one.first < one.end) all = {min(all.first, one.first), max(all.end, one.end)};
    }
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        all.first = min(all.first, __shfl_xor_sync(FULL_WARP, all.first, step));
        all.end = max(all.end, __shfl_xor_sync(FULL_WARP, all.end, step));
    }
    return all;
}

// Returns the smallest range that contains all queries that attend to any of the keys [from, to). Every warp
// of a block computes it.
__device__ __forceinline__ KeyRange queries_seeing_any(const Span *spans, int from, int to, int seq_len) {
    if (CAUSAL) return {from, seq_len};
    KeyRange all = {seq_len, 0};
    for (int t = threadIdx.x % WARP; t < seq_len; t += WARP) {
        KeyRange one = visible_keys(spans, t, seq_len);
        if (one.first < to && one.end > from) all = {min(all.first, t), max(all.end, t + 1)};
    }
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        all.first = min(all.first, __shfl_xor_sync(FULL_WARP, all.first, step));
        all.end = max(all.end, __shfl_xor_sync(FULL_WARP, all.end, step));
    }
    return all;
}

// The visible keys of 32 consecutive queries, one per lane.
struct MaskWindow {
    int t;        // The first query.
    int seq_len;
    KeyRange own;    // The keys visible to query t + lane.
    KeyRange gap;    // Those of them that it does not see.

    __device__ __forceinline__ MaskWindow(const Span *spans, int t, int seq_len)
        : t(t), seq_len(seq_len), own(visible_keys(spans, t + threadIdx.x % WARP, seq_len)),
          gap(hidden_keys(spans, t + threadIdx.x % WARP, seq_len)) {}

    // Returns true if any of the keys [key, key + count) may be visible to any of the queries.
    __device__ __forceinline__ bool any_visible(int key, int count) const {
        if (CAUSAL) return key < min(t + WARP, seq_len);
        return __any_sync(FULL_WARP, own.first < key + count && own.end > key);
    }
    // Returns true if all of these keys are visible to all queries within the sequence.
    __device__ __forceinline__ bool all_visible(int key, int count) const {
        if (CAUSAL) return key + count <= t + 1;
        bool beyond = t + int(threadIdx.x % WARP) >= seq_len;
        bool sees_all = own.first <= key && own.end >= key + count;
        if (BRANCHES) sees_all &= gap.end <= key || gap.first >= key + count;
        return __all_sync(FULL_WARP, beyond || sees_all);
    }
    // Returns the keys visible to query t + i.
    __device__ __forceinline__ KeyRange keys_of(int i) const {
        if (CAUSAL) return {0, t + i + 1};
        return {__shfl_sync(FULL_WARP, own.first, i), __shfl_sync(FULL_WARP, own.end, i)};
    }
    // Returns the gap in the keys of query t + i.
    __device__ __forceinline__ KeyRange gap_of(int i) const {
        if (!BRANCHES) return {0, 0};
        return {__shfl_sync(FULL_WARP, gap.first, i), __shfl_sync(FULL_WARP, gap.end, i)};
    }
};

__device__ __forceinline__ bool contains(KeyRange range, int key) {
    return (CAUSAL || key >= range.first) && key < range.end;
}
__device__ __forceinline__ bool is_visible(KeyRange range, KeyRange gap, int key) {
    return contains(range, key) && !(BRANCHES && key >= gap.first && key < gap.end);
}

// Converts products to the scores that softmax takes, to the base 2: scaled by 1/√dim, and with SOFT_CAP
// capped.
//
// cap·tanh(s / cap) is cap − 2·cap·r with r = 1 / (1 + e^(2s / cap)), and its slope is 4·r·(1 − r).
// Probabilities stay the same if all scores of a row change by the same number, so scores are relative to the
// cap: −2·cap·r. Within kernels their lse is relative too. Exponentials and reciprocals are approximations,
// with an error of at most cap·2^-21.
struct Score {
    float factor;    // Multiplies what `operator()` returns.
    float minus_2_cap, to_cap;

    __device__ __forceinline__ Score(float score_scale, float soft_cap)
        : factor(SOFT_CAP ? 1.0f : score_scale * LOG2_E), minus_2_cap(-2.0f * LOG2_E * soft_cap),
          to_cap(SOFT_CAP ? 2.0f * LOG2_E * score_scale / soft_cap : 0.0f) {}
    __device__ __forceinline__ float ratio(float x) const {
        return reciprocal_fast(1.0f + exp2_fast(x * to_cap));
    }
    // Returns a score, which still has to be multiplied by `factor`.
    __device__ __forceinline__ float operator()(float x) const {
        return SOFT_CAP ? minus_2_cap * ratio(x) : x;
    }
    // Returns the logarithm of a score's probability for an lse from `relative`; the mask may have hidden the
    // score. Sets `slope` to the slope of the cap, without the factor in `gradient_scale`.
    __device__ __forceinline__ float exponent(float x, float lse, float &slope) const {
        slope = 1.0f;
        if (!SOFT_CAP) return fmaf(x, factor, -lse);
        float r = ratio(x);
        slope = fmaf(-r, r, r);
        return x == -infinity() ? x : fmaf(minus_2_cap, r, -lse);
    }
    // Makes an lse relative to the cap, and undoes it.
    __device__ __forceinline__ float relative(float lse) const {
        return SOFT_CAP ? fmaf(0.5f, minus_2_cap, lse) : lse;
    }
    __device__ __forceinline__ float absolute(float lse) const {
        return SOFT_CAP ? fmaf(-0.5f, minus_2_cap, lse) : lse;
    }
    // Returns the factor of the sums of dS·K and dSᵀ·Q.
    static __device__ __forceinline__ float gradient_scale(float score_scale) {
        return SOFT_CAP ? 4.0f * score_scale : score_scale;
    }
};

// Shifts one bit into the top of each half of `bits`. The bit is 1 if the 16-bit draw in that half of `word`
// is kept, that is, at least the threshold. `threshold` holds it in both halves.
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
    u32 thresholds;         // The threshold, in both halves.
    u32 step, sequence;
    u32 row;                // The row of query 0 in the generator's counter.

    __device__ __forceinline__ Dropout(const Drops &drops, u32 step, u32 sequence, int head, int seq_len)
        : drops(drops), thresholds(min(drops.threshold, 0xffffu) * 0x10001u), step(step), sequence(sequence),
          row(u32(head) * u32(seq_len)) {}

    // Returns a bit for each of the 8·CALLS keys from `key` on, 1 if it is kept for query t: bit 4·c + w for
    // key 8·c + 2·w, bit 16 + 4·c + w for the next key. (`key` is a multiple of 8, and CALLS at most 4.)
    template <int CALLS> __device__ __forceinline__ u32 kept(int t, int key) const {
        u32 bits = 0;
#pragma unroll
        for (int call = 0; call < CALLS; call++)
            bits = append_kept(bits, draws(drops, step, sequence, row + t, key / 8 + call), thresholds);
        return bits >> (16 - 4 * CALLS);
    }

    // Returns the fraction of probabilities that is kept, the reciprocal of their scale.
    __device__ __forceinline__ float keep_probability() const {
        return float(65536u - drops.threshold) / 65536.0f;
    }
};
