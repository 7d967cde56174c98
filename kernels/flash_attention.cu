// Flash attention, forward, in bf16 on tensor cores: a block has 128 queries of a head, a warp 32 of them.
//
// Definitions: HEAD_DIM (32, 64, 96, 128), CAUSAL, DROPOUT, STEP (keys that a warp handles at once, 16 or 32), KEPT
// (16-column pieces of queries that stay in registers), BLOCKS (of a multiprocessor, for the compiler).
//
// With 32 queries to a warp, every B that is read from shared memory serves two products, and reading is not slower than
// multiplying. Heads of 32 columns are bound by exponentials: a step of 32 keys takes a quarter of a multiprocessor 256
// cycles for them, 32·4 to 32·8 for products and about 240 to issue everything. So small steps, which few registers
// hold, let four blocks fill each other's gaps, and no step that the mask hides is begun. Of the four warps of a block,
// which sit in the four quarters, the last sees most under the causal mask; blocks that share a multiprocessor turn it.
#include "attention.cuh"
#include "mma.cuh"

constexpr int WARPS = 4, THREADS = WARPS * WARP;
constexpr int WARP_QUERIES = 32, QUERIES = WARPS * WARP_QUERIES;
constexpr int KEYS = 64;  // Of a tile that is copied.

using Row = Rows<HEAD_DIM>;
// Outputs of wide heads leave no registers to queries.
using Queries = Operand<HEAD_DIM, 2, KEPT>;
constexpr int KV_BYTES = KEYS * Row::BYTES;

// How much (as a power of 2) scores may rise above the maximum that probabilities are relative to before it is
// renewed. Most steps leave it, and with it sums and outputs, as it is.
constexpr float SLACK = 8.0f;

// What a warp has of its queries: rows 16·m + 8·half + lane / 4.
struct Outputs {
    float sums[2][HEAD_DIM / 8][4] = {};
    float peak[2][2];           // What p is relative to, log2.
    float norm[2][2] = {};      // Σ p over the keys of this lane.
};

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) { return warp_reduce<4>(x, Add()); }
// Where no key was seen yet, probabilities are relative to 1.
__device__ __forceinline__ float finite(float peak) { return peak == -infinity() ? 0.0f : peak; }

// Raises the peaks to the largest score, and with them what was summed.
__device__ __forceinline__ void renew(Outputs &out, const float (&top)[2][2]) {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float peak = quad_max(fmaxf(out.peak[m][half], top[m][half]));
            float by = exp2_fast(out.peak[m][half] - finite(peak));
            out.peak[m][half] = peak;
            out.norm[m][half] *= by;
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n++) {
                out.sums[m][n][2 * half] *= by;
                out.sums[m][n][2 * half + 1] *= by;
            }
        }
}

// Adds what 32 keys from `key` on (in shared memory: `keys` and `values`) give to the queries of a warp.
__device__ __forceinline__ void step(Outputs &out, const Queries &queries, u32 keys, u32 values, const Sight &sight,
                                     int key, float scale, const Dropout &dropout) {
    int lane = threadIdx.x % WARP;
    u32 kept_of_lane = DROPOUT ? dropout.kept<STEP / 8>(sight.t + lane, key) : 0;
    float scores[2][STEP / 8][4] = {};
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++) {
        u32 a[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++) queries.a(a[m], m, k);
#pragma unroll
        for (int n = 0; n < STEP / 16; n++) {
            u32 b[4];
            Row::b_of_rows(b, keys + n * 16 * Row::BYTES, k);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                multiply(scores[m][2 * n], a[m], b[0], b[1]);
                multiply(scores[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
    if (!sight.all(key, STEP)) {
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                Seen seen = sight.of(m * 16 + half * 8 + lane / 4);
#pragma unroll
                for (int n = 0; n < STEP / 8; n++)
#pragma unroll
                    for (int j = 0; j < 2; j++)
                        if (!sees(seen, key + n * 8 + lane % 4 * 2 + j)) scores[m][n][2 * half + j] = -infinity();
            }
    }

    float top[2][2];
    bool rises = false;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = -infinity();
#pragma unroll
            for (int n = 0; n < STEP / 8; n++)
                most = fmaxf(most, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
            top[m][half] = most * scale;
            rises |= top[m][half] > out.peak[m][half] + SLACK;
        }
    if (__any_sync(FULL_WARP, rises)) renew(out, top);

#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float shift = finite(out.peak[m][half]);
#pragma unroll
            for (int n = 0; n < STEP / 8; n++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    float &p = scores[m][n][2 * half + j];
                    p = exp2_fast(fmaf(p, scale, -shift));
                    out.norm[m][half] += p;
                }
        }
    u32 p[2][STEP / 16][4];
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int k = 0; k < STEP / 16; k++) pack(p[m][k], scores[m][2 * k], scores[m][2 * k + 1]);

    if (DROPOUT) {
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 kept = __shfl_sync(FULL_WARP, kept_of_lane, m * 16 + half * 8 + lane / 4) << (3 - lane % 4);
#pragma unroll
                for (int n = 0; n < STEP / 8; n++) p[m][n / 2][n % 2 * 2 + half] &= spread_signs(kept << (12 - 4 * n));
            }
    }

#pragma unroll
    for (int k = 0; k < STEP / 16; k++)
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 16; n++) {
            u32 b[4];
            Row::b_of_columns(b, values + k * 16 * Row::BYTES, n);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                multiply(out.sums[m][2 * n], p[m][k], b[0], b[1]);
                multiply(out.sums[m][2 * n + 1], p[m][k], b[2], b[3]);
            }
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
flash_attention(const bf16 *packed,      // [batch·seq_len, (kv_heads·group + 2·kv_heads)·HEAD_DIM]
                const uint2 *spans,      // [batch·seq_len], without CAUSAL
                const u32 *sequences,    // [batch], with DROPOUT
                const u32 *dropout_step, // [1], with DROPOUT
                bf16 *o,                 // = [batch·seq_len, kv_heads·group·HEAD_DIM]
                float *lse,              // = [batch·seq_len, kv_heads·group]
                int batch, int kv_heads, int group, int seq_len, u32 by_tiles, u32 by_group, u32 by_processors,
                float score_scale, u32 key0, u32 key1, u32 threshold, float drop_scale) {
    // [QUERIES] queries, later outputs; then twice [KEYS] keys and [KEYS] values.
    extern __shared__ __align__(128) unsigned char shared[];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int tiles = (seq_len + QUERIES - 1) / QUERIES;
    Place place = place_of_block(tiles, by_tiles);
    if (place.sequence >= batch) return;
    int block_t = (tiles - 1 - place.tile) * QUERIES;
    int of_warp = (warp + turn_of_block(by_processors)) % WARPS * WARP_QUERIES;

    int heads = kv_heads * group, width = (heads + 2 * kv_heads) * HEAD_DIM;
    i64 first_row = i64(place.sequence) * seq_len;
    const bf16 *rows = packed + first_row * width;
    const bf16 *k_rows = rows + (heads + divide(place.head, by_group)) * HEAD_DIM;
    if (!CAUSAL) spans += first_row;

    u32 queries = shared_address(shared), stages = queries + QUERIES * Row::BYTES;
    auto copy_tile = [&](int tile) {
        u32 to = stages + tile % 2 * 2 * KV_BYTES;
        Row::copy<KEYS, THREADS>(to, k_rows, width, tile * KEYS, seq_len);
        Row::copy<KEYS, THREADS>(to + KV_BYTES, k_rows + kv_heads * HEAD_DIM, width, tile * KEYS, seq_len);
    };
    Seen of_block = seen_by_any(spans, block_t, block_t + QUERIES, seq_len);
    int tile = of_block.first / KEYS, end_tile = (of_block.end + KEYS - 1) / KEYS;
    Row::copy<QUERIES, THREADS>(queries, rows + place.head * HEAD_DIM, width, block_t, seq_len);
    if (tile < end_tile) copy_tile(tile);

    Sight sight(spans, block_t + of_warp, seq_len);
    Drops drops = {key0, key1, threshold, drop_scale};
    Dropout dropout(drops, DROPOUT ? *dropout_step : 0, DROPOUT ? sequences[place.sequence] : 0, place.head, seq_len);
    float scale = score_scale * LOG2_E;
    Outputs out;
#pragma unroll
    for (int row = 0; row < 4; row++) out.peak[row / 2][row % 2] = -infinity();
    wait_for_copies();
    __syncthreads();
    Queries of_queries;
    of_queries.take(queries + of_warp * Row::BYTES);
    for (; tile < end_tile; tile++) {
        // The next tile goes where the last one was, which all warps have left at the barrier below.
        if (tile + 1 < end_tile) copy_tile(tile + 1);
        u32 keys_of_tile = stages + tile % 2 * 2 * KV_BYTES;
#pragma unroll 1
        for (int of_tile = 0; of_tile < KEYS; of_tile += STEP) {
            int key = tile * KEYS + of_tile;
            u32 keys = keys_of_tile + of_tile * Row::BYTES;
            if (sight.any(key, STEP)) step(out, of_queries, keys, keys + KV_BYTES, sight, key, scale, dropout);
        }
        wait_for_copies();
        __syncthreads();
    }

    int there = seq_len - sight.t;
    if (there <= 0) return;
    i64 row = i64(place.sequence) * seq_len + sight.t;
    // The four lanes of a row share its numbers; each of them stores the lse of one of their four rows.
    float factor[2][2], peak_of_lane = 0.0f, norm_of_lane = 0.0f;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float norm = quad_sum(out.norm[m][half]);
            // A query that sees no key gives zeros.
            factor[m][half] = norm == 0.0f ? 0.0f : (DROPOUT ? drop_scale : 1.0f) * reciprocal_fast(norm);
            if (lane % 4 == 2 * m + half) norm_of_lane = norm, peak_of_lane = out.peak[m][half];
        }
    int of_lane = lane % 4 * 8 + lane / 4;
    if (of_lane < there) lse[(row + of_lane) * heads + place.head] = (peak_of_lane + log2_fast(norm_of_lane)) * LN_2;
    Row::store(out.sums, factor, shared + of_warp * Row::BYTES, o + (row * heads + place.head) * HEAD_DIM,
               heads * HEAD_DIM, there);
}
