// Attention in fp32 multiply-adds, for any head width: products of tiles in shared memory.
//
// Definitions: T (format in memory), HEAD_DIM (at most 256), VALUE_DIM (columns of values and dO that are
// read; o and dV are zero behind them), ROWS and COLUMNS (of a tile of scores: multiples of 16 and of 8),
// CAUSAL, DROPOUT, SOFT_CAP, THREADS (16·8). Thread (y, x) of a block has rows y + 16·i and columns x + 8·j
// of the tile, and columns 32·n + 4·x to 32·n + 4·x + 3 of results. So the eight threads of a row are
// neighbors in a warp.
#pragma once
#include "attention.cuh"

constexpr int BLOCKS = 2;  // At least, per SM: registers suffice for two without spilling.
static_assert(THREADS == 128, "a block is 16 by 8 threads");
constexpr int ROWS_EACH = ROWS / 16, COLUMNS_EACH = COLUMNS / 8;
constexpr int WIDTH = (HEAD_DIM + 31) / 32 * 32, WIDTHS_EACH = WIDTH / 32;
constexpr int STRIDE = WIDTH + 4;            // Between rows, so that eight neighbors lie in different banks.
constexpr int SQUARE_STRIDE = COLUMNS + 8;   // Between rows of the tile of scores, for the same reason.
constexpr int VEC = HEAD_DIM % 4 == 0 ? 4 : 1;
static_assert(VALUE_DIM <= HEAD_DIM && VALUE_DIM % VEC == 0, "whole pieces of values are copied");

using Square = float[ROWS_EACH][COLUMNS_EACH];
using Result = float[ROWS_EACH][WIDTHS_EACH][4];

__device__ __forceinline__ int thread_x() { return threadIdx.x % 8; }
__device__ __forceinline__ int thread_y() { return threadIdx.x / 8; }

// Copies rows, `stride` elements apart, to shared memory as floats. Rows from `valid_rows` on and columns
// from `LIVE` on become zero.
template <int COUNT, int LIVE = HEAD_DIM>
__device__ __forceinline__ void copy_rows(float *to, const T *from, int stride, int valid_rows) {
    constexpr int PIECES = COUNT * WIDTH / VEC;
#pragma unroll 4
    for (int i = threadIdx.x; i < PIECES; i += THREADS) {
        int row = i / (WIDTH / VEC), column = i % (WIDTH / VEC) * VEC;
        float piece[VEC] = {};
        if (row < valid_rows && column < LIVE) load(from + i64(row) * stride + column, piece);
        store(to + row * STRIDE + column, piece);
    }
}

__device__ __forceinline__ float4 four(const float *from) { return *reinterpret_cast<const float4 *>(from); }

// c += a·bᵀ: a has ROWS rows, b COLUMNS rows.
__device__ __forceinline__ void multiply_rows(Square &c, const float *a, const float *b) {
    a += thread_y() * STRIDE;
    b += thread_x() * STRIDE;
#pragma unroll 4
    for (int k = 0; k < HEAD_DIM; k += 4) {
        float4 left[ROWS_EACH], right[COLUMNS_EACH];
#pragma unroll
        for (int i = 0; i < ROWS_EACH; i++) left[i] = four(a + 16 * i * STRIDE + k);
#pragma unroll
        for (int j = 0; j < COLUMNS_EACH; j++) right[j] = four(b + 8 * j * STRIDE + k);
#pragma unroll
        for (int i = 0; i < ROWS_EACH; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS_EACH; j++) {
                c[i][j] = fmaf(left[i].x, right[j].x, c[i][j]);
                c[i][j] = fmaf(left[i].y, right[j].y, c[i][j]);
                c[i][j] = fmaf(left[i].z, right[j].z, c[i][j]);
                c[i][j] = fmaf(left[i].w, right[j].w, c[i][j]);
            }
    }
}

// c += a·b: a is a tile of scores in shared memory, b has COLUMNS rows.
__device__ __forceinline__ void multiply_columns(Result &c, const float *a, const float *b) {
    a += thread_y() * SQUARE_STRIDE;
    b += thread_x() * 4;
#pragma unroll 2
    for (int k = 0; k < COLUMNS; k += 4) {
        float left[ROWS_EACH][4];
#pragma unroll
        for (int i = 0; i < ROWS_EACH; i++) load(a + 16 * i * SQUARE_STRIDE + k, left[i]);
#pragma unroll
        for (int n = 0; n < WIDTHS_EACH; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float4 right = four(b + (k + j) * STRIDE + n * 32);
#pragma unroll
                for (int i = 0; i < ROWS_EACH; i++) {
                    c[i][n][0] = fmaf(left[i][j], right.x, c[i][n][0]);
                    c[i][n][1] = fmaf(left[i][j], right.y, c[i][n][1]);
                    c[i][n][2] = fmaf(left[i][j], right.z, c[i][n][2]);
                    c[i][n][3] = fmaf(left[i][j], right.w, c[i][n][3]);
                }
            }
    }
}

// Writes a tile of scores to shared memory. The warp that wrote a row also reads it.
__device__ __forceinline__ void store_square(float *to, const Square &square) {
#pragma unroll
    for (int i = 0; i < ROWS_EACH; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS_EACH; j++)
            to[(thread_y() + 16 * i) * SQUARE_STRIDE + thread_x() + 8 * j] = square[i][j];
}

// Stores rows of a result, multiplied by `factor`. Only the first `valid_rows` rows are stored.
__device__ __forceinline__ void store_rows(T *to, int stride, const Result &result,
                                           const float (&factor)[ROWS_EACH], int valid_rows) {
#pragma unroll
    for (int i = 0; i < ROWS_EACH; i++) {
        int row = thread_y() + 16 * i;
#pragma unroll
        for (int n = 0; n < WIDTHS_EACH; n++)
#pragma unroll
            for (int at = 0; at < 4; at += VEC) {
                int column = n * 32 + thread_x() * 4 + at;
                float piece[VEC];
#pragma unroll
                for (int j = 0; j < VEC; j++) piece[j] = result[i][n][at + j] * factor[i];
                if (row < valid_rows && column < HEAD_DIM) store(to + i64(row) * stride + column, piece);
            }
    }
}

// Converts a product to the score that softmax takes: scaled, and capped, to the last bits of fp32.
struct AccurateScore {
    float scale, cap, to_cap;

    __device__ __forceinline__ AccurateScore(float score_scale, float soft_cap)
        : scale(score_scale), cap(soft_cap), to_cap(SOFT_CAP ? score_scale / soft_cap : 0.0f) {}
    __device__ __forceinline__ float operator()(float x) const {
        return SOFT_CAP ? cap * tanhf(x * to_cap) : x * scale;
    }
    // Also returns the slope of the cap.
    __device__ __forceinline__ float operator()(float x, float &slope) const {
        slope = 1.0f;
        if (!SOFT_CAP) return x * scale;
        float y = tanhf(x * to_cap);
        slope = fmaf(-y, y, 1.0f);
        return cap * y;
    }
};

// Combines one value of each of the eight threads of a row.
template <typename Combine> __device__ __forceinline__ float row_reduce(float x, Combine combine) {
    return warp_reduce<8>(x, combine);
}

// Returns the bits of `append_kept` for CALLS calls of the generator. The calls are split among LANES_SHARING
// lanes of a warp; this is lane number `lane`. Lane c % LANES_SHARING makes call c with `call(c)`.
template <int CALLS, int LANES_SHARING, typename Call>
__device__ __forceinline__ u32 split_calls(int lane, const Dropout &dropout, Call call) {
    constexpr int EACH = (CALLS + LANES_SHARING - 1) / LANES_SHARING;
    static_assert(EACH <= 4, "bits of a lane");
    u32 bits = 0;
#pragma unroll 1
    for (int c = 0; c < EACH; c++)
        bits = append_kept(bits, call(c * LANES_SHARING + lane), dropout.thresholds);
    return bits >> (16 - 4 * EACH);
}
// True if column `c` is kept by the i-th call that a lane made.
__device__ __forceinline__ bool is_kept(u32 bits, int i, int c) {
    return bits >> (16 * (c % 2) + 4 * i + c / 2) & 1;
}
