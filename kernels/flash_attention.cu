// Flash attention, forward, in bf16 on tensor cores. A block has four warps with 16 or 32 queries
// of a head each.
//
// Definitions: HEAD_DIM (32, 64, 96, 128, 192), VALUE_DIM (columns of a value that are read; o is zero behind
// them), CAUSAL, DROPOUT, SOFT_CAP, THREADS (per block), WARP_QUERIES (per warp, 16 or 32), KEYS (per tile
// that is copied), STEP (keys that a warp multiplies at once, 16 or 32), KEPT (16-column pieces of queries
// that stay in registers), BLOCKS (per SM, for __launch_bounds__). src/engine/ops/attention/tuning.rs sets
// them.
//
// With 32 queries per warp, every B that is read from shared memory serves two products, and reading is not
// slower than multiplying. Outputs of 192 columns leave registers for 16 queries only. Heads of 32 columns
// are bound by exponentials: for a step of 32 keys, a quarter of an SM needs 256 cycles for exponentials,
// 32·4 to 32·8 for products, and about 240 to issue all instructions. So small steps, which need few
// registers, let four blocks fill each other's stalls, and steps that the mask hides entirely are skipped.
// Each of the four warps of a block runs in one quarter of the SM, and with the causal mask the last warp has
// the most keys. Blocks that share an SM rotate which quarter that is (`warp_rotation`).
#include "attention.cuh"
#include "mma.cuh"

constexpr int WARPS = THREADS / WARP;
constexpr int QUERIES = WARPS * WARP_QUERIES;
// Tiles of 16 queries per warp.
constexpr int TILES = WARP_QUERIES / 16;
static_assert(WARP_QUERIES == 16 || WARP_QUERIES == 32, "a warp has one or two tiles of 16 queries");
static_assert(VALUE_DIM <= HEAD_DIM && VALUE_DIM % 16 == 0, "values are multiplied in pieces of 16 columns");

using Row = Rows<HEAD_DIM>;
// Outputs of wide heads leave no registers for queries.
using Queries = Operand<HEAD_DIM, TILES, KEPT>;
constexpr int KV_BYTES = KEYS * Row::BYTES;

// Scores may exceed the running maximum by this much (log2) before it is raised. Most steps leave the
// maximum, and so the sums and outputs, as they are.
constexpr float RESCALE_THRESHOLD = 8.0f;

// The results of a warp for its queries: rows 16·m + 8·half + lane / 4.
struct Outputs {
    float sums[TILES][HEAD_DIM / 8][4] = {};
    float running_max[TILES][2];    // The maximum that p is relative to, log2.
    float row_sum[TILES][2] = {};   // Σ p over the keys of this lane.
};

// Raises the running maxima to the largest scores, and rescales sums and outputs accordingly.
__device__ __forceinline__ void rescale(Outputs &out, const float (&tile_max)[TILES][2]) {
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float running_max = quad_max(fmaxf(out.running_max[m][half], tile_max[m][half]));
            float factor = exp2_fast(out.running_max[m][half] - finite(running_max));
            out.running_max[m][half] = running_max;
            out.row_sum[m][half] *= factor;
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n++) {
                out.sums[m][n][2 * half] *= factor;
                out.sums[m][n][2 * half + 1] *= factor;
            }
        }
}

// Adds the contribution of STEP keys from `key` on to the outputs of a warp. `keys` and `values` are their
// addresses in shared memory.
__device__ __forceinline__ void step(Outputs &out, const Queries &queries, u32 keys, u32 values,
                                     const MaskWindow &window, int key, const Score &score,
                                     const Dropout &dropout) {
    int lane = threadIdx.x % WARP;
    u32 lane_kept = DROPOUT ? dropout.kept<STEP / 8>(window.t + lane, key) : 0;
    float scores[TILES][STEP / 8][4] = {};
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++) {
        u32 a[TILES][4];
#pragma unroll
        for (int m = 0; m < TILES; m++) queries.load_a(a[m], m, k);
#pragma unroll
        for (int n = 0; n < STEP / 16; n++) {
            u32 b[4];
            Row::load_b_from_rows(b, keys + n * 16 * Row::BYTES, k);
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                mma(scores[m][2 * n], a[m], b[0], b[1]);
                mma(scores[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
    if (SOFT_CAP) {
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int n = 0; n < STEP / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) scores[m][n][i] = score(scores[m][n][i]);
    }
    if (!window.all_visible(key, STEP)) {
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                KeyRange visible = window.keys_of(m * 16 + half * 8 + lane / 4);
                KeyRange gap = window.gap_of(m * 16 + half * 8 + lane / 4);
#pragma unroll
                for (int n = 0; n < STEP / 8; n++)
#pragma unroll
                    for (int j = 0; j < 2; j++)
                        if (!is_visible(visible, gap, key + n * 8 + lane % 4 * 2 + j))
                            scores[m][n][2 * half + j] = -infinity();
            }
    }

    float tile_max[TILES][2];
    bool rises = false;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float row_max = -infinity();
#pragma unroll
            for (int n = 0; n < STEP / 8; n++)
                row_max = fmaxf(row_max, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
            tile_max[m][half] = row_max * score.factor;
            rises |= tile_max[m][half] > out.running_max[m][half] + RESCALE_THRESHOLD;
        }
    if (__any_sync(FULL_WARP, rises)) rescale(out, tile_max);

#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float shift = finite(out.running_max[m][half]);
#pragma unroll
            for (int n = 0; n < STEP / 8; n++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    float &p = scores[m][n][2 * half + j];
                    p = exp2_fast(fmaf(p, score.factor, -shift));
                    out.row_sum[m][half] += p;
                }
        }
    u32 p[TILES][STEP / 16][4];
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int k = 0; k < STEP / 16; k++) pack(p[m][k], scores[m][2 * k], scores[m][2 * k + 1]);

    if (DROPOUT) {
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 kept = __shfl_sync(FULL_WARP, lane_kept, m * 16 + half * 8 + lane / 4) << (3 - lane % 4);
#pragma unroll
                for (int n = 0; n < STEP / 8; n++)
                    p[m][n / 2][n % 2 * 2 + half] &= spread_signs(kept << (12 - 4 * n));
            }
    }

#pragma unroll
    for (int k = 0; k < STEP / 16; k++)
#pragma unroll
        for (int n = 0; n < VALUE_DIM / 16; n++) {
            u32 b[4];
            Row::load_b_from_columns(b, values + k * 16 * Row::BYTES, n);
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                mma(out.sums[m][2 * n], p[m][k], b[0], b[1]);
                mma(out.sums[m][2 * n + 1], p[m][k], b[2], b[3]);
            }
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
flash_attention(const bf16 *packed,      // [batch·seq_len, (kv_heads·group + 2·kv_heads)·HEAD_DIM]
                const Span *spans,       // [batch·seq_len], without CAUSAL
                const u32 *sequences,    // [batch], with DROPOUT
                const u32 *dropout_step, // [1], with DROPOUT
                bf16 *o,                 // = [batch·seq_len, kv_heads·group·HEAD_DIM]
                float *lse,              // = [batch·seq_len, kv_heads·group]
                int batch, int kv_heads, int group, int seq_len, u32 inv_tiles, u32 inv_group, u32 inv_sms,
                float score_scale, u32 key0, u32 key1, u32 threshold, float drop_scale, float soft_cap) {
    // [QUERIES] queries, later outputs; then two stages of [KEYS] keys and [KEYS] values.
    extern __shared__ __align__(128) unsigned char shared[];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int tiles = (seq_len + QUERIES - 1) / QUERIES;
    BlockWork work = work_of_block(tiles, inv_tiles);
    if (work.sequence >= batch) return;
    int block_t = (tiles - 1 - work.tile) * QUERIES;
    int warp_row = (warp + warp_rotation(inv_sms)) % WARPS * WARP_QUERIES;

    int heads = kv_heads * group, width = (heads + 2 * kv_heads) * HEAD_DIM;
    i64 first_row = i64(work.sequence) * seq_len;
    const bf16 *rows = packed + first_row * width;
    const bf16 *k_rows = rows + (heads + divide(work.head, inv_group)) * HEAD_DIM;
    if (!CAUSAL) spans += first_row;

    u32 queries = shared_address(shared), stages = queries + QUERIES * Row::BYTES;
    auto copy_tile = [&](int tile) {
        u32 to = stages + tile % 2 * 2 * KV_BYTES;
        Row::copy<KEYS>(to, k_rows, width, tile * KEYS, seq_len);
        Row::copy<KEYS>(to + KV_BYTES, k_rows + kv_heads * HEAD_DIM, width, tile * KEYS, seq_len);
    };
    KeyRange block_keys = keys_visible_to_any(spans, block_t, block_t + QUERIES, seq_len);
    int tile = block_keys.first / KEYS, end_tile = (block_keys.end + KEYS - 1) / KEYS;
    Row::copy<QUERIES>(queries, rows + work.head * HEAD_DIM, width, block_t, seq_len);
    if (tile < end_tile) copy_tile(tile);

    MaskWindow window(spans, block_t + warp_row, seq_len);
    Drops drops = {key0, key1, threshold, drop_scale};
    Dropout dropout(drops, DROPOUT ? *dropout_step : 0, DROPOUT ? sequences[work.sequence] : 0, work.head,
                    seq_len);
    Score score(score_scale, soft_cap);
    Outputs out;
#pragma unroll
    for (int row = 0; row < 2 * TILES; row++) out.running_max[row / 2][row % 2] = -infinity();
    cp_async_wait_all();
    __syncthreads();
    Queries query_operand;
    query_operand.init(queries + warp_row * Row::BYTES);
    for (; tile < end_tile; tile++) {
        // The next tile replaces the previous one. All warps have finished reading that at the barrier below.
        if (tile + 1 < end_tile) copy_tile(tile + 1);
        u32 tile_keys = stages + tile % 2 * 2 * KV_BYTES;
#pragma unroll 1
        for (int tile_row = 0; tile_row < KEYS; tile_row += STEP) {
            int key = tile * KEYS + tile_row;
            u32 keys = tile_keys + tile_row * Row::BYTES;
            if (window.any_visible(key, STEP))
                step(out, query_operand, keys, keys + KV_BYTES, window, key, score, dropout);
        }
        cp_async_wait_all();
        __syncthreads();
    }

    int valid_rows = seq_len - window.t;
    if (valid_rows <= 0) return;
    i64 row = i64(work.sequence) * seq_len + window.t;
    // The four lanes of a row hold the same sums; each stores the lse of one of their rows.
    float factor[TILES][2], lane_max = 0.0f, lane_sum = 0.0f;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float row_sum = quad_sum(out.row_sum[m][half]);
            // A query without visible keys yields zeros.
            factor[m][half] =
                row_sum == 0.0f ? 0.0f : (DROPOUT ? drop_scale : 1.0f) * reciprocal_fast(row_sum);
            if (lane % 4 == 2 * m + half) lane_sum = row_sum, lane_max = out.running_max[m][half];
        }
    int lane_row = lane % 4 * 8 + lane / 4;
    if (lane % 4 < 2 * TILES && lane_row < valid_rows)
        lse[(row + lane_row) * heads + work.head] = score.absolute(lane_max + log2_fast(lane_sum)) * LN_2;
    Row::store(out.sums, factor, shared + warp_row * Row::BYTES, o + (row * heads + work.head) * HEAD_DIM,
               heads * HEAD_DIM, valid_rows);
}
