// Query and key heads of packed rows, shared out among lanes, and the angles by which positions turn them.
//
// Definitions: T; DIM, QUERY and KV (the width of a head and how many there are); VEC (neighbours that a thread moves
// at once, a divisor of DIM/2); LANES (threads of a head, a power of two); TURNS (a list of DIM/2 numbers: by which
// fraction of a turn, times 2⁶⁴, one position turns a pair of elements).
#pragma once
#include "common.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP;
// Elements i and i + HALF of a head turn together, so a thread holds packs of both halves.
constexpr int HALF = DIM / 2;
constexpr int HELD = (HALF / VEC + LANES - 1) / LANES;
constexpr int ROW = (QUERY + 2 * KV) * DIM;
constexpr int VALUES = (QUERY + KV) * DIM;

// Warps of a block that handle queries, in proportion; the others handle keys.
constexpr int SHARE = (WARPS * QUERY + (QUERY + KV) / 2) / (QUERY + KV);
constexpr int QUERY_WARPS = SHARE < 1 ? 1 : SHARE < WARPS ? SHARE : WARPS - 1;

// Rows whose angles are held at a time.
constexpr int TILE = DIM <= 128 ? 32 : DIM <= 4096 ? 4096 / DIM : 1;

__device__ const u64 TURNS_OF_PAIRS[] = TURNS;

// What a thread holds of a head.
struct Part {
    Pack<T, VEC> low[HELD], high[HELD];
};

// Which heads a thread has a part in: of those of its kind in a run of rows, each `step`-th from `first` on.
struct Turn {
    bool key;
    int first, step;

    __device__ __forceinline__ Turn() {
        int warp = threadIdx.x / WARP, slot = threadIdx.x % WARP / LANES;
        key = warp >= QUERY_WARPS;
        first = (key ? warp - QUERY_WARPS : warp) * (WARP / LANES) + slot;
        step = (key ? WARPS - QUERY_WARPS : QUERY_WARPS) * (WARP / LANES);
    }
    __device__ __forceinline__ int heads() const { return key ? KV : QUERY; }
    // The row of the run that a head lies in.
    __device__ __forceinline__ int row(int head) const { return key ? head / KV : head / QUERY; }
    // Where this thread's part of a head begins, counted from the first element of a tile.
    __device__ __forceinline__ int at(int head) const {
        int r = row(head), in_row = key ? QUERY + head - r * KV : head - r * QUERY;
        return r * ROW + in_row * DIM + column();
    }
    // The column of a thread's first pack in each half; the others follow at distances of LANES · VEC.
    static __device__ __forceinline__ int column() { return int(threadIdx.x) % LANES * VEC; }
};

// Whether this thread's i-th pack lies in the half.
__device__ __forceinline__ bool in_half(int i) {
    return (i + 1) * LANES * VEC <= HALF || Turn::column() + i * LANES * VEC < HALF;
}

__device__ __forceinline__ void load_part(const T *from, bool live, Part &part) {
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        part.low[i] = part.high[i] = Pack<T, VEC>{};
        if (!live || !in_half(i)) continue;
        part.low[i] = *reinterpret_cast<const Pack<T, VEC> *>(from + i * LANES * VEC);
        part.high[i] = *reinterpret_cast<const Pack<T, VEC> *>(from + i * LANES * VEC + HALF);
    }
}

// Cosine and sine of 2π·turn/2⁶⁴. The whole quarters are taken off in integers, which is exact, so that what is rounded
// is small.
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

// For each row: HALF cosines, then HALF sines. The block's threads share the work.
__device__ __forceinline__ void fill_angles(const u32 *positions, int rows, float (*angles)[DIM]) {
    for (int at = threadIdx.x; at < rows * HALF; at += THREADS) {
        int row = at / HALF, pair = at % HALF;
        turn_to(positions[row] * TURNS_OF_PAIRS[pair], angles[row][pair], angles[row][HALF + pair]);
    }
}

// Copies the values of rows, which are not turned.
__device__ __forceinline__ void copy_values(const T *from, T *to, int rows) {
    constexpr int PACKS = KV * DIM / VEC;
#pragma unroll 4
    for (int at = threadIdx.x; at < rows * PACKS; at += THREADS) {
        i64 place = i64(at / PACKS) * ROW + VALUES + at % PACKS * VEC;
        *reinterpret_cast<Pack<T, VEC> *>(to + place) = *reinterpret_cast<const Pack<T, VEC> *>(from + place);
    }
}
