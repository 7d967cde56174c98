// The 8-bit floats of matrix products (OCP 8-bit Floating Point Specification, 2023), with the same bits as
// src/engine/device/fp8.rs.
#pragma once
#include "common.cuh"

// 4 bits of exponent and 3 of mantissa.
struct e4m3 {
    u8 bits;
    static constexpr int MANTISSA = 3, BIAS = 7;
    static constexpr float LARGEST = 448.0f;
};
// 5 bits of exponent and 2 of mantissa.
struct e5m2 {
    u8 bits;
    static constexpr int MANTISSA = 2, BIAS = 15;
    static constexpr float LARGEST = 57344.0f;
};

// The largest number that rounds to zero: half of the smallest one.
template <typename F> __device__ __forceinline__ constexpr float flushed_up_to() {
    return 1.0f / float(1 << (F::BIAS - 1 + F::MANTISSA + 1));
}

// Widens exactly. The bits are those of a float whose exponent has another bias.
template <typename F> __device__ __forceinline__ float widened(F x) {
    u32 magnitude = x.bits & 0x7f;
    float rebased = __uint_as_float(magnitude << (23 - F::MANTISSA));
    float value = rebased * __uint_as_float(u32(127 + 127 - F::BIAS) << 23);
    if (value > F::LARGEST) {
        value = magnitude == 0x7c && F::MANTISSA == 2 ? infinity() : __uint_as_float(0x7fffffff);
    }
    return x.bits & 0x80 ? -value : value;
}
__device__ __forceinline__ float up(e4m3 x) { return widened(x); }
__device__ __forceinline__ float up(e5m2 x) { return widened(x); }

// Rounds to nearest, ties to even. A number beyond the largest becomes the largest; a NaN stays a NaN.
template <typename F> __device__ __forceinline__ u32 rounded(float x) {
    u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80u;
    if (x != x) return sign | 0x7fu;
    float size = fminf(fabsf(x), F::LARGEST);
    int exponent = max(int(__float_as_uint(size) >> 23) - 127, 1 - F::BIAS);
    // Scaling by a power of two is exact, so this rounds once.
    u32 steps = u32(rintf(size * __uint_as_float(u32(F::MANTISSA - exponent + 127) << 23)));
    return sign | ((u32(exponent + F::BIAS - 1) << F::MANTISSA) + steps);
}

// Rounds two numbers to a pair of bytes, `low` in the low one.
template <typename F> __device__ __forceinline__ u32 encode(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    u16 pair;
    if constexpr (F::MANTISSA == 3) {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    }
    return pair;
#else
    return rounded<F>(low) | rounded<F>(high) << 8;
#endif
}

// The largest magnitude of what a thread has seen, as the bits of a float, and how many numbers became the
// largest or zero. Integers order like the magnitudes that they encode, with NaN above infinity.
struct Seen {
    u32 largest = 0, saturated = 0, flushed = 0;
};

// Multiplies four numbers by a scale and rounds them to four bytes.
template <typename F>
__device__ __forceinline__ u32 quantized(float a, float b, float c, float d, float scale, Seen &seen) {
    float x[4] = {a, b, c, d};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        seen.largest = max(seen.largest, __float_as_uint(x[i]) & 0x7fffffffu);
        x[i] *= scale;
        float size = fabsf(x[i]);
        seen.saturated += size > F::LARGEST;
        seen.flushed += size <= flushed_up_to<F>() && size > 0.0f;
    }
    return encode<F>(x[0], x[1]) | encode<F>(x[2], x[3]) << 16;
}

// Transposes 4 × 4 bytes: word r holds row r, and afterwards column r.
__device__ __forceinline__ void transpose(u32 (&words)[4]) {
    u32 low01 = __byte_perm(words[0], words[1], 0x5140), low23 = __byte_perm(words[2], words[3], 0x5140);
    u32 high01 = __byte_perm(words[0], words[1], 0x7362), high23 = __byte_perm(words[2], words[3], 0x7362);
    words[0] = __byte_perm(low01, low23, 0x5410), words[1] = __byte_perm(low01, low23, 0x7632);
    words[2] = __byte_perm(high01, high23, 0x5410), words[3] = __byte_perm(high01, high23, 0x7632);
}

// Adds what the threads of a block have seen to a site's maximum and counts (saturated, flushed). Maxima and
// counts are exact in any order. Every thread of the block must call it.
__device__ __forceinline__ void add_seen(Seen seen, u32 *maximum, double *counts) {
    u32 largest = __reduce_max_sync(FULL_WARP, seen.largest);
    u32 saturated = __reduce_add_sync(FULL_WARP, seen.saturated);
    u32 flushed = __reduce_add_sync(FULL_WARP, seen.flushed);
    __shared__ u32 all[3];
    if (threadIdx.x < 3) all[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x % WARP == 0) {
        atomicMax(&all[0], largest);
        if (saturated) atomicAdd(&all[1], saturated);
        if (flushed) atomicAdd(&all[2], flushed);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicMax(maximum, all[0]);
        if (all[1]) atomicAdd(&counts[0], double(all[1]));
        if (all[2]) atomicAdd(&counts[1], double(all[2]));
    }
}

// A tile of bytes in shared memory, from which its columns are written as rows of the transposed matrix:
// TILE_ROWS × TILE_COLUMNS, a multiple of 16 rows. A word holds four rows of a column.
template <int TILE_ROWS, int TILE_COLUMNS> struct __align__(16) TransposedTile {
    static constexpr int WORDS = TILE_ROWS / 4, QUADS = TILE_ROWS / 16;
    static_assert(TILE_ROWS % 16 == 0 && (QUADS & (QUADS - 1)) == 0, "quads are exchanged by exclusive or");
    u32 words[TILE_COLUMNS][WORDS];

    // Groups of four words of a column are exchanged so that writers of neighboring columns meet other banks.
    static __device__ __forceinline__ int place(int column, int word) {
        return word ^ ((column / 8 % QUADS) << 2);
    }

    // Puts rows 4·word to 4·word + 3 of four columns.
    __device__ __forceinline__ void put(int column, int word, const u32 (&columns)[4]) {
#pragma unroll
        for (int c = 0; c < 4; c++) words[column + c][place(column + c, word)] = columns[c];
    }

    // Writes the tile, whose first element is (row, column) of a matrix of `rows` × `columns`, both multiples
    // of 16, into the transposed matrix. Every thread of the block takes part, after a barrier.
    template <int THREAD_COUNT>
    __device__ __forceinline__ void write(u8 *transposed, int row, int column, int rows, int columns) const {
#pragma unroll
        for (int at = threadIdx.x; at < TILE_COLUMNS * QUADS; at += THREAD_COUNT) {
            int c = at / QUADS, quad = at % QUADS;
            if (column + c >= columns || row + 16 * quad >= rows) continue;
            uint4 bytes = *reinterpret_cast<const uint4 *>(&words[c][place(c, 4 * quad)]);
            *reinterpret_cast<uint4 *>(transposed + i64(column + c) * rows + row + 16 * quad) = bytes;
        }
    }
};
