// Query and key heads of packed rows, distributed over lanes, and the angles by which positions rotate them.
//
// Definitions: T; DIM (width of a head), QUERY and KV (numbers of heads); VEC (elements that a thread moves
// at once, a divisor of DIM/2); LANES (threads per head, a power of two); THREADS (per block); TURNS (DIM/2
// numbers: the fraction of a full turn, times 2⁶⁴, by which one position rotates each pair of elements).
#pragma once
#include "common.cuh"

constexpr int WARPS = THREADS / WARP;
// Elements i and i + HALF of a head are rotated as a pair, so a thread holds packs of both halves.
constexpr int HALF = DIM / 2;
constexpr int HELD = (HALF / VEC + LANES - 1) / LANES;
constexpr int ROW = (QUERY + 2 * KV) * DIM;
constexpr int VALUES = (QUERY + KV) * DIM;

// Warps of a block that handle queries, in proportion; the others handle keys.
constexpr int PROPORTIONAL = (WARPS * QUERY + (QUERY + KV) / 2) / (QUERY + KV);
constexpr int QUERY_WARPS = PROPORTIONAL < 1 ? 1 : PROPORTIONAL < WARPS ? PROPORTIONAL : WARPS - 1;

// Rows whose angles are held at a time.
constexpr int TILE = DIM <= 128 ? 32 : DIM <= 4096 ? 4096 / DIM : 1;

__device__ const u64 TURNS_OF_PAIRS[] = TURNS;

// The packs of a head that a thread holds.
struct HeadPart {
    Pack<T, VEC> low[HELD], high[HELD];
};

// The heads that a thread works on: among the query (or key) heads of a run of rows, each `step`-th from
// `first` on.
struct HeadSlots {
    bool key;
    int first, step;

    __device__ __forceinline__ HeadSlots() {
        int warp = threadIdx.x / WARP, slot = threadIdx.x % WARP / LANES;
        key = warp >= QUERY_WARPS;
        first = (key ? warp - QUERY_WARPS : warp) * (WARP / LANES) + slot;
        step = (key ? WARPS - QUERY_WARPS : QUERY_WARPS) * (WARP / LANES);
    }
    __device__ __forceinline__ int heads() const { return key ? KV : QUERY; }
    // The row of the run that a head lies in.
    __device__ __forceinline__ int row(int head) const { return key ? head / KV : head / QUERY; }
    // The offset of this thread's first pack of a head, from the first element of a tile.
    __device__ __forceinline__ int at(int head) const {
        int r = row(head), in_row = key ? QUERY + head - r * KV : head - r * QUERY;
        return r * ROW + in_row * DIM + column();
    }
    // The column of a thread's first pack in each half; the others follow at distances of LANES · VEC.
    static __device__ __forceinline__ int column() { return int(threadIdx.x) % LANES * VEC; }
};

// True if this thread's i-th pack lies in the half.
__device__ __forceinline__ bool in_half(int i) {
    return (i + 1) * LANES * VEC <= HALF || HeadSlots::column() + i * LANES * VEC < HALF;
}

__device__ __forceinline__ void load_head_part(const T *from, bool live, HeadPart &part) {
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        part.low[i] = part.high[i] = Pack<T, VEC>{};
        if (!live || !in_half(i)) continue;
        part.low[i] = *reinterpret_cast<const Pack<T, VEC> *>(from + i * LANES * VEC);
        part.high[i] = *reinterpret_cast<const Pack<T, VEC> *>(from + i * LANES * VEC + HALF);
    }
}

// Cosine and sine of 2π·turn/2⁶⁴. Whole quarter turns are subtracted in integers, which is exact, so that
// only a small angle is rounded.
__device__ __forceinline__ void turn_to(u64 turn, float &cosine, float &sine) {
    u64 quarters = (turn + (1ull << 61)) >> 62;
    float rest = float(i64(turn - (quarters << 62))) * 0x1p-63f;
    float c, s;
    sincospif(rest, &s, &c);
    cosine = quarters % 2 == 0 ? c : s;
    sine = quarters % 2 == 0 ? s : c;
    if (quarters == 1 || quarters == 2) cosine = -cosine;
    if (quarters >= 2) sine = -sine;
}

// For each row: HALF cosines, then HALF sines. All threads of the block take part.
__device__ __forceinline__ void fill_angles(const u32 *positions, int rows, float (*angles)[DIM]) {
    for (int at = threadIdx.x; at < rows * HALF; at += THREADS) {
        int row = at / HALF, pair = at % HALF;
        turn_to(positions[row] * TURNS_OF_PAIRS[pair], angles[row][pair], angles[row][HALF + pair]);
    }
}

// Copies the values of rows, which are not rotated.
__device__ __forceinline__ void copy_values(const T *from, T *to, int rows) {
    constexpr int PACKS = KV * DIM / VEC;
#pragma unroll 4
    for (int at = threadIdx.x; at < rows * PACKS; at += THREADS) {
        i64 place = i64(at / PACKS) * ROW + VALUES + at % PACKS * VEC;
        *reinterpret_cast<Pack<T, VEC> *>(to + place) = *reinterpret_cast<const Pack<T, VEC> *>(from + place);
    }
}
