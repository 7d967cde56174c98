// The distribution of the query and key heads of packed rows over the threads of a block, and the cosines and
// sines of the rotary position embedding.
//
// Definitions: T; HEAD_DIM, N_HEADS and N_KV_HEADS; ROTATED_DIM (the first elements of a head, which are
// rotated); VEC (elements that a thread moves at once, a divisor of HEAD_DIM/2 and of ROTATED_DIM/2); LANES
// (threads per head, a power of two); THREADS (per block); FREQUENCIES (HEAD_DIM/2 integers: the fraction of
// a full turn, times 2⁶⁴, by which one position rotates each pair of elements; 0 for pairs that are not
// rotated); COS_SIN_FACTOR (multiplies the cosines and sines of rotated pairs).
#pragma once
#include "common.cuh"

constexpr int WARPS = THREADS / WARP;
// Elements i and i + HALF_ROTATED of a head are rotated as a pair. Elements from ROTATED_DIM on are paired
// the same way among themselves. So a thread holds packs of the first elements of pairs, and packs of their
// second elements.
constexpr int HALF_DIM = HEAD_DIM / 2, HALF_ROTATED = ROTATED_DIM / 2;
constexpr int PACKS_PER_THREAD = (HALF_DIM / VEC + LANES - 1) / LANES;
// Elements of a row: the query heads, the key heads, the value heads.
constexpr int QKV_WIDTH = (N_HEADS + 2 * N_KV_HEADS) * HEAD_DIM;
constexpr int V_OFFSET = (N_HEADS + N_KV_HEADS) * HEAD_DIM;

// Warps of a block that handle query heads, in proportion to the number of those heads. The other warps
// handle key heads.
constexpr int PROPORTIONAL = (WARPS * N_HEADS + (N_HEADS + N_KV_HEADS) / 2) / (N_HEADS + N_KV_HEADS);
constexpr int QUERY_WARPS = PROPORTIONAL < 1 ? 1 : PROPORTIONAL < WARPS ? PROPORTIONAL : WARPS - 1;

// Rows whose cosines and sines are in shared memory at a time.
constexpr int TILE_ROWS = HEAD_DIM <= 128 ? 32 : HEAD_DIM <= 4096 ? 4096 / HEAD_DIM : 1;

__device__ const u64 FREQUENCY_OF_PAIR[] = FREQUENCIES;

// The packs of a head that a thread holds: first elements of pairs in `low` (the first half of a head that is
// rotated as a whole), second elements in `high`.
struct HeadPacks {
    Pack<T, VEC> low[PACKS_PER_THREAD], high[PACKS_PER_THREAD];
};

// The heads that a thread works on. The query (or key) heads of the rows of a tile are counted row by row;
// the thread takes each `step`-th of them from `first` on.
struct ThreadHeads {
    bool key;
    int first, step;

    __device__ __forceinline__ ThreadHeads() {
        int warp = threadIdx.x / WARP, slot = threadIdx.x % WARP / LANES;
        key = warp >= QUERY_WARPS;
        first = (key ? warp - QUERY_WARPS : warp) * (WARP / LANES) + slot;
        step = (key ? WARPS - QUERY_WARPS : QUERY_WARPS) * (WARP / LANES);
    }
    __device__ __forceinline__ int per_row() const { return key ? N_KV_HEADS : N_HEADS; }
    // The row of the tile to which a head belongs.
    __device__ __forceinline__ int row(int head) const { return key ? head / N_KV_HEADS : head / N_HEADS; }
    // The offset, from the first element of the tile, of the first element of this thread's pairs in a head,
    // if the head were rotated as a whole. Rows have `row_width` elements.
    __device__ __forceinline__ int at(int head, int row_width = QKV_WIDTH) const {
        int r = row(head), head_of_row = key ? N_HEADS + head - r * N_KV_HEADS : head - r * N_HEADS;
        return r * row_width + head_of_row * HEAD_DIM + column();
    }
    // The first pair of a thread's first packs; its other packs follow at distances of LANES · VEC.
    static __device__ __forceinline__ int column() { return int(threadIdx.x) % LANES * VEC; }
    // True if the pairs of the i-th packs are rotated. Either all pairs of a pack are rotated, or none.
    static __device__ __forceinline__ bool rotated(int i) {
        return HALF_ROTATED == HALF_DIM || column() + i * LANES * VEC < HALF_ROTATED;
    }
    // The offsets of the i-th packs from `at`: of the first elements of pairs, and of the second elements.
    static __device__ __forceinline__ int low(int i) {
        return i * LANES * VEC + (rotated(i) ? 0 : HALF_ROTATED);
    }
    static __device__ __forceinline__ int high(int i) {
        return i * LANES * VEC + (rotated(i) ? HALF_ROTATED : HALF_DIM);
    }
};

// Returns the column in a head that belongs to a slot of a row in shared memory. Such a row holds the first
// elements of all pairs, then the second elements.
__device__ __forceinline__ int column_of_slot(int slot) {
    if (HALF_ROTATED == HALF_DIM) return slot;
    int pair = slot % HALF_DIM;
    bool second = slot >= HALF_DIM;
    if (pair < HALF_ROTATED) return second ? pair + HALF_ROTATED : pair;
    return second ? pair + HALF_DIM : pair + HALF_ROTATED;
}

// True if this thread's i-th packs lie in the head; a constant except for the last packs.
__device__ __forceinline__ bool pack_in_half(int i) {
    return (i + 1) * LANES * VEC <= HALF_DIM || ThreadHeads::column() + i * LANES * VEC < HALF_DIM;
}

// Loads this thread's packs of a head; zeros if the head is not `live`.
__device__ __forceinline__ void load_head_packs(const T *from, bool live, HeadPacks &part) {
#pragma unroll
    for (int i = 0; i < PACKS_PER_THREAD; i++) {
        part.low[i] = part.high[i] = Pack<T, VEC>{};
        if (!live || !pack_in_half(i)) continue;
        part.low[i] = *reinterpret_cast<const Pack<T, VEC> *>(from + ThreadHeads::low(i));
        part.high[i] = *reinterpret_cast<const Pack<T, VEC> *>(from + ThreadHeads::high(i));
    }
}

// Computes cosine and sine of 2π·turn/2⁶⁴. Whole quarter turns are subtracted in integers, which is exact, so
// only a small angle is rounded.
__device__ __forceinline__ void cos_sin_of_turn(u64 turn, float &cosine, float &sine) {
    u64 quarters = (turn + (1ull << 61)) >> 62;
    float rest = float(i64(turn - (quarters << 62))) * 0x1p-63f;
    float c, s;
    sincospif(rest, &s, &c);
    cosine = quarters % 2 == 0 ? c : s;
    sine = quarters % 2 == 0 ? s : c;
    if (quarters == 1 || quarters == 2) cosine = -cosine;
    if (quarters >= 2) sine = -sine;
}

// Fills cos_sin[rows, HEAD_DIM]: for each row HALF_DIM cosines, then HALF_DIM sines, of the angles of its
// position; 1 and 0 for pairs that are not rotated. All threads of the block take part.
__device__ __forceinline__ void fill_cos_sin(const u32 *positions, int rows, float (*cos_sin)[HEAD_DIM]) {
    for (int at = threadIdx.x; at < rows * HALF_DIM; at += THREADS) {
        int row = at / HALF_DIM, pair = at % HALF_DIM;
        u64 turn = positions[row] * FREQUENCY_OF_PAIR[pair];
        cos_sin_of_turn(turn, cos_sin[row][pair], cos_sin[row][HALF_DIM + pair]);
        if (COS_SIN_FACTOR != 1.0f && pair < HALF_ROTATED) {
            cos_sin[row][pair] *= COS_SIN_FACTOR;
            cos_sin[row][HALF_DIM + pair] *= COS_SIN_FACTOR;
        }
    }
}

// Copies value heads, which are not rotated, from rows of `from_width` elements to rows of `to_width`. Both
// addresses are those of the first value.
__device__ __forceinline__ void copy_v(const T *from, int from_width, T *to, int to_width, int rows) {
    constexpr int PACKS = N_KV_HEADS > 0 ? N_KV_HEADS * HEAD_DIM / VEC : 1;
    if (N_KV_HEADS == 0) return;
#pragma unroll 4
    for (int at = threadIdx.x; at < rows * PACKS; at += THREADS) {
        i64 row = at / PACKS;
        int column = at % PACKS * VEC;
        *reinterpret_cast<Pack<T, VEC> *>(to + row * to_width + column) =
            *reinterpret_cast<const Pack<T, VEC> *>(from + row * from_width + column);
    }
}
