// Flash attention, backward, in bf16 on tensor cores: one pass for dQ, and one for dK and dV.
//
// Definitions: HEAD_DIM (32, 64, 96, 128, 192), VALUE_DIM (columns of values and dO that are read; dV is zero
// behind them), CAUSAL, DROPOUT, SOFT_CAP, THREADS (per block). For the passes over queries (Q_) and keys
// (K_): ROWS per warp; rows of the other kind in a TILE that is copied and in a STEP of a warp; 16-column
// pieces of the warp's operands that stay in registers (KEPT); BLOCKS per SM, for __launch_bounds__.
// src/engine/ops/attention/tuning.rs sets them.
//
// With P = e^(S − lse) and dropout factors F: dV = (P∘F)ᵀ·dO, dP = F∘(dO·Vᵀ), dS = P∘(dP − D) where D = Σ
// dO∘O per query, dQ = dS·K/√dim, dK = dSᵀ·Q/√dim. Both passes compute S and dP, so there are seven products
// where a single pass with sums over keys and over queries needs five. But in a single pass, either one of
// the sums goes through memory at every step, in an order that must be fixed, or dS goes through shared
// memory, with a barrier per step. For the heads of small models that costs as much time as the two extra
// products, and here warps need no barrier within a tile.
//
// With dropout, F/(1 − p) is treated as a mask: D is multiplied by 1 − p, dP starts at −D and is set back to
// −D where the mask is zero, and dQ, dK, dV are divided by 1 − p at the end.
#include "attention.cuh"
#include "mma.cuh"

constexpr int WARPS = THREADS / WARP;
// True if dK and dV of a head's keys need two blocks, because the sums of wide heads do not fit in the
// registers of one.
constexpr bool K_SPLIT = HEAD_DIM > 128;
static_assert(VALUE_DIM <= HEAD_DIM && VALUE_DIM % 16 == 0, "values are multiplied in pieces of 16 columns");
using Row = Rows<HEAD_DIM>;

// The products of a pass. A warp has ROWS rows, multiplies them by STEP others at a time, and keeps 16·HELD
// columns of its operands in registers.
template <int ROWS, int STEP, int HELD> struct Pass {
    static constexpr int TILES = ROWS / 16;
    using Fixed = Operand<HEAD_DIM, TILES, HELD>;
    using Square = float[TILES][STEP / 8][4];
    using Packed = u32[TILES][STEP / 16][4];
    using Sums = float[TILES][HEAD_DIM / 8][4];

    // c += a·bᵀ, columns 16·k on, for the STEP rows from `b` on.
    static __device__ __forceinline__ void multiply_rows(Square &c, const Fixed &a, u32 b, int k) {
        u32 left[TILES][4];
#pragma unroll
        for (int m = 0; m < TILES; m++) a.load_a(left[m], m, k);
#pragma unroll
        for (int n = 0; n < STEP / 16; n++) {
            u32 right[4];
            Row::load_b_from_rows(right, b + n * 16 * Row::BYTES, k);
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                mma(c[m][2 * n], left[m], right[0], right[1]);
                mma(c[m][2 * n + 1], left[m], right[2], right[3]);
            }
        }
    }

    // c += a·b for the STEP rows from `b` on, of which the first COLUMNS columns are read.
    template <int COLUMNS = HEAD_DIM>
    static __device__ __forceinline__ void multiply_columns(Sums &c, const Square &a, u32 b) {
        Packed left;
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int k = 0; k < STEP / 16; k++) pack(left[m][k], a[m][2 * k], a[m][2 * k + 1]);
#pragma unroll
        for (int k = 0; k < STEP / 16; k++)
#pragma unroll
            for (int n = 0; n < COLUMNS / 16; n++) {
                u32 right[4];
                Row::load_b_from_columns(right, b + k * 16 * Row::BYTES, n);
#pragma unroll
                for (int m = 0; m < TILES; m++) {
                    mma(c[m][2 * n], left[m][k], right[0], right[1]);
                    mma(c[m][2 * n + 1], left[m][k], right[2], right[3]);
                }
            }
    }
};

// Returns the lse, as a log2, that exponents of probabilities are relative to. A query without visible keys
// has an lse of minus infinity; all its scores are masked, so any finite number will do.
__device__ __forceinline__ float shift_of(float lse) { return lse == -infinity() ? 0.0f : lse * LOG2_E; }

// Computes dQ and D of the queries of a block. A lane has rows 16·m + 8·half + lane / 4 of its warp.
extern "C" __global__ void __launch_bounds__(THREADS, Q_BLOCKS)
flash_attention_grad_queries(const bf16 *packed,      // [batch·seq_len, (heads + 2·kv_heads)·HEAD_DIM]
                             const bf16 *o,           // [batch·seq_len, heads·HEAD_DIM]
                             const float *lse,        // [batch·seq_len, heads]
                             const bf16 *d_o,         // [batch·seq_len, heads·HEAD_DIM]
                             const uint2 *spans,      // [batch·seq_len], without CAUSAL
                             const u32 *sequences,    // [batch], with DROPOUT
                             const u32 *dropout_step, // [1], with DROPOUT
                             bf16 *d_packed,          // = as packed, the queries' part
                             float *delta,            // = [batch·seq_len, heads]: D·(1 − p)
                             int batch, int kv_heads, int group, int seq_len, u32 inv_tiles, u32 inv_group,
                             u32 inv_sms, float score_scale, u32 key0, u32 key1, u32 threshold,
                             float drop_scale, float soft_cap) {
    using Pass = ::Pass<Q_ROWS, Q_STEP, Q_KEPT>;
    constexpr int TILES = Pass::TILES;
    // [QUERIES] queries, later dQ; [QUERIES] dO; then two stages of [Q_TILE] keys and [Q_TILE] values.
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr int QUERIES = WARPS * Q_ROWS;
    constexpr int FIXED_BYTES = QUERIES * Row::BYTES, TILE_BYTES = Q_TILE * Row::BYTES;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int tiles = (seq_len + QUERIES - 1) / QUERIES;
    BlockWork work = work_of_block(tiles, inv_tiles);
    if (work.sequence >= batch) return;
    int block_t = (tiles - 1 - work.tile) * QUERIES;
    int warp_row = (warp + warp_rotation(inv_sms)) % WARPS * Q_ROWS;

    int heads = kv_heads * group, width = (heads + 2 * kv_heads) * HEAD_DIM, o_width = heads * HEAD_DIM;
    i64 first_row = i64(work.sequence) * seq_len;
    const bf16 *rows = packed + first_row * width;
    const bf16 *k_rows = rows + (heads + divide(work.head, inv_group)) * HEAD_DIM;
    if (!CAUSAL) spans += first_row;

    u32 fixed = shared_address(shared), stages = fixed + 2 * FIXED_BYTES;
    auto copy_tile = [&](int tile) {
        u32 to = stages + tile % 2 * 2 * TILE_BYTES;
        Row::copy<Q_TILE>(to, k_rows, width, tile * Q_TILE, seq_len);
        Row::copy<Q_TILE>(to + TILE_BYTES, k_rows + kv_heads * HEAD_DIM, width, tile * Q_TILE, seq_len);
    };
    KeyRange block_keys = keys_visible_to_any(spans, block_t, block_t + QUERIES, seq_len);
    int tile = block_keys.first / Q_TILE, end_tile = (block_keys.end + Q_TILE - 1) / Q_TILE;
    i64 o_at = first_row * o_width + work.head * HEAD_DIM;
    Row::copy<QUERIES>(fixed, rows + work.head * HEAD_DIM, width, block_t, seq_len);
    Row::copy<QUERIES>(fixed + FIXED_BYTES, d_o + o_at, o_width, block_t, seq_len);
    if (tile < end_tile) copy_tile(tile);

    MaskWindow window(spans, block_t + warp_row, seq_len);
    Drops drops = {key0, key1, threshold, drop_scale};
    Dropout dropout(drops, DROPOUT ? *dropout_step : 0, DROPOUT ? sequences[work.sequence] : 0, work.head,
                    seq_len);
    Score score(score_scale, soft_cap);
    // The four lanes of a row need the same lse and D; each of them reads and stores the two numbers of one
    // of their rows.
    int lane_row = lane % (2 * TILES) * 8 + lane / 4;
    i64 lane_at = (first_row + min(window.t + lane_row, seq_len - 1)) * heads + work.head;
    float lane_shift = score.relative(shift_of(lse[lane_at])), shift[TILES][2], minus_delta[TILES][2];
    // O as an A; rows beyond the sequence are multiplied by a dO of zero.
    u32 outputs[TILES][VALUE_DIM / 16][4];
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = min(window.t + m * 16 + half * 8 + lane / 4, seq_len - 1);
            const bf16 *from = o + o_at + u64(u32(row)) * u32(o_width) + lane % 4 * 2;
#pragma unroll
            for (int piece = 0; piece < VALUE_DIM / 8; piece++)
                outputs[m][piece / 2][piece % 2 * 2 + half] =
                    *reinterpret_cast<const u32 *>(from + piece * 8);
        }
    cp_async_wait_all();
    __syncthreads();
    Pass::Fixed queries, d_outputs;
    queries.init(fixed + warp_row * Row::BYTES);
    d_outputs.init(fixed + FIXED_BYTES + warp_row * Row::BYTES);
    float lane_delta = 0.0f;
#pragma unroll
    for (int m = 0; m < TILES; m++) {
        // D is the diagonal of dO·Oᵀ. An A holds the B of its transpose, in another order.
        float low[4] = {}, high[4] = {};
#pragma unroll
        for (int k = 0; k < VALUE_DIM / 16; k++) {
            u32 a[4];
            d_outputs.load_a(a, m, k);
            mma(low, a, outputs[m][k][0], outputs[m][k][2]);
            mma(high, a, outputs[m][k][1], outputs[m][k][3]);
        }
        bool odd = lane / 4 % 2 == 1;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float mine = half == 0 ? (odd ? low[1] : low[0]) : (odd ? high[3] : high[2]);
            float sum = __shfl_sync(FULL_WARP, mine, lane / 4 * 4 + lane / 8) *
                        (DROPOUT ? dropout.keep_probability() : 1.0f);
            minus_delta[m][half] = -sum;
            shift[m][half] = __shfl_sync(FULL_WARP, lane_shift, lane / 4 * 4 + 2 * m + half);
            if (lane % 4 == 2 * m + half) lane_delta = sum;
        }
    }
    if (lane % 4 < 2 * TILES && window.t + lane_row < seq_len) delta[lane_at] = lane_delta;

    Pass::Sums dq = {};
    for (; tile < end_tile; tile++) {
        // The next tile replaces the previous one. All warps have finished reading that at the barrier below.
        if (tile + 1 < end_tile) copy_tile(tile + 1);
        u32 tile_keys = stages + tile % 2 * 2 * TILE_BYTES;
#pragma unroll 1
        for (int tile_row = 0; tile_row < Q_TILE; tile_row += Q_STEP) {
            int key = tile * Q_TILE + tile_row;
            if (!window.any_visible(key, Q_STEP)) continue;
            u32 keys = tile_keys + tile_row * Row::BYTES, values = keys + TILE_BYTES;
            u32 lane_kept = DROPOUT ? dropout.kept<Q_STEP / 8>(window.t + lane, key) : 0;
            Pass::Square s = {}, dp;
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int n = 0; n < Q_STEP / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) dp[m][n][i] = minus_delta[m][i / 2];
#pragma unroll
            for (int k = 0; k < HEAD_DIM / 16; k++) {
                Pass::multiply_rows(s, queries, keys, k);
                if (k < VALUE_DIM / 16) Pass::multiply_rows(dp, d_outputs, values, k);
            }
            if (!window.all_visible(key, Q_STEP)) {
#pragma unroll
                for (int m = 0; m < TILES; m++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        KeyRange visible = window.keys_of(m * 16 + half * 8 + lane / 4);
#pragma unroll
                        for (int i = 0; i < Q_STEP / 4; i++)
                            if (!contains(visible, key + i / 2 * 8 + lane % 4 * 2 + i % 2))
                                s[m][i / 2][2 * half + i % 2] = -infinity();
                    }
            }
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    u32 kept = 0;
                    if (DROPOUT)
                        kept = __shfl_sync(FULL_WARP, lane_kept, m * 16 + half * 8 + lane / 4) >> lane % 4;
#pragma unroll
                    for (int n = 0; n < Q_STEP / 8; n++)
#pragma unroll
                        for (int j = 0; j < 2; j++) {
                            float slope;
                            float p =
                                exp2_fast(score.exponent(s[m][n][2 * half + j], shift[m][half], slope));
                            float &ds = dp[m][n][2 * half + j];
                            if (DROPOUT && !(kept >> (4 * n + 16 * j) & 1)) ds = minus_delta[m][half];
                            ds *= p * slope;
                        }
                }
            Pass::multiply_columns(dq, dp, keys);
        }
        cp_async_wait_all();
        __syncthreads();
    }

    float factor[TILES][2];
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++)
        factor[i / 2][i % 2] = Score::gradient_scale(score_scale) * (DROPOUT ? drop_scale : 1.0f);
    if (window.t < seq_len)
        Row::store(dq, factor, shared + warp_row * Row::BYTES,
                   d_packed + (first_row + window.t) * width + work.head * HEAD_DIM, width,
                   seq_len - window.t);
}

// Computes dK, dV or both of the keys of a block from the queries of all heads of the group, in order. A lane
// has rows 16·m + 8·half + lane / 4 of its warp. `kv_head` is the head; the other arguments are those of the
// kernel below.
template <bool DK, bool DV>
__device__ __forceinline__ void
grad_keys(int kv_head, unsigned char *shared, const bf16 *packed, const float *lse, const bf16 *d_o,
          const float *delta, const uint2 *spans, const u32 *sequences, const u32 *dropout_step,
          bf16 *d_packed, int batch, int kv_heads, int group, int seq_len, u32 inv_tiles, u32 inv_sms,
          float score_scale, u32 key0, u32 key1, u32 threshold, float drop_scale, float soft_cap) {
    using Pass = ::Pass<K_ROWS, K_STEP, K_KEPT>;
    constexpr int TILES = Pass::TILES;
    constexpr int KEYS = WARPS * K_ROWS;
    constexpr int FIXED_BYTES = KEYS * Row::BYTES, TILE_BYTES = K_TILE * Row::BYTES;
    constexpr int STAGE_BYTES = 2 * TILE_BYTES + 2 * K_TILE * 4;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int tiles = (seq_len + KEYS - 1) / KEYS;
    BlockWork work = work_of_block(tiles, inv_tiles);
    work.head = kv_head;
    // In reverse order: the pass over queries ended with the last sequences, which are still in the L2 cache.
    work.sequence = batch - 1 - work.sequence;
    if (work.sequence < 0) return;
    int block_key = work.tile * KEYS;
    int warp_row = (warp + warp_rotation(inv_sms)) % WARPS * K_ROWS, warp_key = block_key + warp_row;

    int heads = kv_heads * group, width = (heads + 2 * kv_heads) * HEAD_DIM, o_width = heads * HEAD_DIM;
    i64 first_row = i64(work.sequence) * seq_len;
    const bf16 *rows = packed + first_row * width;
    if (!CAUSAL) spans += first_row;

    u32 fixed = shared_address(shared);
    auto copy_tile = [&](int head, int tile, int stage) {
        u32 to = fixed + 2 * FIXED_BYTES + stage * STAGE_BYTES;
        int t = tile * K_TILE;
        Row::copy<K_TILE>(to, rows + head * HEAD_DIM, width, t, seq_len);
        Row::copy<K_TILE>(to + TILE_BYTES, d_o + first_row * o_width + head * HEAD_DIM, o_width, t, seq_len);
        static_assert(2 * K_TILE <= THREADS, "a thread copies one number, or none");
        t += threadIdx.x % K_TILE;
        i64 at = (first_row + min(t, seq_len - 1)) * heads + head;
        if (2 * K_TILE < THREADS && threadIdx.x >= 2 * K_TILE) return;
        cp_async_4(to + 2 * TILE_BYTES + threadIdx.x * 4, (threadIdx.x < K_TILE ? lse : delta) + at,
                   t < seq_len);
    };
    const bf16 *k_rows = rows + (heads + work.head) * HEAD_DIM;
    Row::copy<KEYS>(fixed, k_rows, width, block_key, seq_len);
    if (DK) Row::copy<KEYS>(fixed + FIXED_BYTES, k_rows + kv_heads * HEAD_DIM, width, block_key, seq_len);
    KeyRange queries_seeing = queries_seeing_any(spans, block_key, block_key + KEYS, seq_len);
    int first_tile = queries_seeing.first / K_TILE, end_tile = (queries_seeing.end + K_TILE - 1) / K_TILE;
    int head = work.head * group, end_head = head + group, tile = first_tile, stage = 0;
    if (tile < end_tile) copy_tile(head, tile, stage);

    Drops drops = {key0, key1, threshold, drop_scale};
    u32 step = DROPOUT ? *dropout_step : 0, sequence = DROPOUT ? sequences[work.sequence] : 0;
    Score score(score_scale, soft_cap);
    Pass::Sums dk = {}, dv = {};
    cp_async_wait_all();
    __syncthreads();
    Pass::Fixed keys, values;
    keys.init(fixed + warp_row * Row::BYTES);
    values.init(fixed + FIXED_BYTES + warp_row * Row::BYTES);
    while (tile < end_tile && head < end_head) {
        int t = tile * K_TILE;
        Dropout dropout(drops, step, sequence, head, seq_len);
        u32 tile_queries = fixed + 2 * FIXED_BYTES + stage * STAGE_BYTES;
        const unsigned char *stats = shared + 2 * FIXED_BYTES + stage * STAGE_BYTES + 2 * TILE_BYTES;
        // The next tile replaces the previous one. All warps have finished reading that at the barrier below.
        if (++tile == end_tile) tile = first_tile, head++;
        stage ^= 1;
        if (head < end_head) copy_tile(head, tile, stage);
#pragma unroll 1
        for (int tile_row = 0; tile_row < K_TILE; tile_row += WARP) {
            MaskWindow window(spans, t + tile_row, seq_len);
            if (CAUSAL ? window.t >= seq_len || window.t + WARP <= warp_key
                       : !window.any_visible(warp_key, K_ROWS))
                continue;
            bool masked = !window.all_visible(warp_key, K_ROWS);
            u32 lane_kept = DROPOUT ? dropout.kept<K_ROWS / 8>(window.t + lane, warp_key) : 0;
#pragma unroll 1
            for (int at = 0; at < WARP; at += K_STEP) {
                if (CAUSAL && window.t + at + K_STEP <= warp_key) continue;
                int in_tile = tile_row + at;
                u32 queries = tile_queries + in_tile * Row::BYTES, d_outputs = queries + TILE_BYTES;
                Pass::Square s = {}, dp;
                float2 minus_delta[K_STEP / 8];
#pragma unroll
                for (int n = 0; n < K_STEP / 8; n++) {
                    int column = in_tile + n * 8 + lane % 4 * 2;
                    float2 delta = *reinterpret_cast<const float2 *>(stats + (K_TILE + column) * 4);
                    minus_delta[n] = make_float2(-delta.x, -delta.y);
#pragma unroll
                    for (int m = 0; m < TILES; m++)
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            dp[m][n][i] = i % 2 == 0 ? minus_delta[n].x : minus_delta[n].y;
                }
#pragma unroll
                for (int k = 0; k < HEAD_DIM / 16; k++) {
                    Pass::multiply_rows(s, keys, queries, k);
                    if (DK && k < VALUE_DIM / 16) Pass::multiply_rows(dp, values, d_outputs, k);
                }
                if (masked) {
#pragma unroll
                    for (int n = 0; n < K_STEP / 8; n++)
#pragma unroll
                        for (int j = 0; j < 2; j++) {
                            KeyRange visible = window.keys_of(at + n * 8 + lane % 4 * 2 + j);
#pragma unroll
                            for (int i = 0; i < 2 * TILES; i++)
                                if (!contains(visible, warp_key + i * 8 + lane / 4))
                                    s[i / 2][n][i % 2 * 2 + j] = -infinity();
                        }
                }
#pragma unroll
                for (int n = 0; n < K_STEP / 8; n++) {
                    int column = n * 8 + lane % 4 * 2;
                    float2 lse = *reinterpret_cast<const float2 *>(stats + (in_tile + column) * 4);
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        float shift = score.relative(shift_of(j == 0 ? lse.x : lse.y));
                        float dropped = j == 0 ? minus_delta[n].x : minus_delta[n].y;
                        u32 kept = 0;
                        if (DROPOUT)
                            kept = __shfl_sync(FULL_WARP, lane_kept, at + column + j) >>
                                   (lane / 4 % 2 * 16 + lane / 8);
#pragma unroll
                        for (int m = 0; m < TILES; m++)
#pragma unroll
                            for (int half = 0; half < 2; half++) {
                                float &p = s[m][n][2 * half + j], &ds = dp[m][n][2 * half + j];
                                float slope;
                                p = exp2_fast(score.exponent(p, shift, slope));
                                bool keeps = !DROPOUT || (kept >> (8 * m + 4 * half) & 1);
                                ds = p * slope * (keeps ? ds : dropped);
                                p = keeps ? p : 0.0f;
                            }
                    }
                }
                if (DV) Pass::template multiply_columns<VALUE_DIM>(dv, s, d_outputs);
                if (DK) Pass::multiply_columns(dk, dp, queries);
            }
        }
        cp_async_wait_all();
        __syncthreads();
    }

    float k_factor[TILES][2], v_factor[TILES][2];
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        v_factor[i / 2][i % 2] = DROPOUT ? drop_scale : 1.0f;
        k_factor[i / 2][i % 2] = Score::gradient_scale(score_scale) * v_factor[i / 2][i % 2];
    }
    if (warp_key >= seq_len) return;
    bf16 *dk_rows = d_packed + (first_row + warp_key) * width + (heads + work.head) * HEAD_DIM;
    unsigned char *scratch = shared + warp_row * Row::BYTES;
    if (DK) Row::store(dk, k_factor, scratch, dk_rows, width, seq_len - warp_key);
    if (DV)
        Row::store(dv, v_factor, scratch + FIXED_BYTES, dk_rows + kv_heads * HEAD_DIM, width,
                   seq_len - warp_key);
}

// With K_SPLIT, the grid has two blocks for each that it has otherwise: one for dV, then one for dK.
extern "C" __global__ void __launch_bounds__(THREADS, K_BLOCKS)
flash_attention_grad_keys(const bf16 *packed,      // [batch·seq_len, (heads + 2·kv_heads)·HEAD_DIM]
                          const float *lse,        // [batch·seq_len, heads]
                          const bf16 *d_o,         // [batch·seq_len, heads·HEAD_DIM]
                          const float *delta,      // [batch·seq_len, heads]: D·(1 − p)
                          const uint2 *spans,      // [batch·seq_len], without CAUSAL
                          const u32 *sequences,    // [batch], with DROPOUT
                          const u32 *dropout_step, // [1], with DROPOUT
                          bf16 *d_packed,          // = as packed, the keys' and the values' part
                          int batch, int kv_heads, int group, int seq_len, u32 inv_tiles, u32 inv_group,
                          u32 inv_sms, float score_scale, u32 key0, u32 key1, u32 threshold,
                          float drop_scale, float soft_cap) {
    // [KEYS] keys, later dK; [KEYS] values, later dV; then two stages of [K_TILE] queries, [K_TILE] dO,
    // [K_TILE] lse and [K_TILE] D.
    extern __shared__ __align__(128) unsigned char shared[];
    if constexpr (!K_SPLIT)
        grad_keys<true, true>(int(blockIdx.x), shared, packed, lse, d_o, delta, spans, sequences,
                              dropout_step, d_packed, batch, kv_heads, group, seq_len, inv_tiles, inv_sms,
                              score_scale, key0, key1, threshold, drop_scale, soft_cap);
    else if (blockIdx.x % 2 == 0)
        grad_keys<false, true>(int(blockIdx.x / 2), shared, packed, lse, d_o, delta, spans, sequences,
                               dropout_step, d_packed, batch, kv_heads, group, seq_len, inv_tiles, inv_sms,
                               score_scale, key0, key1, threshold, drop_scale, soft_cap);
    else
        grad_keys<true, false>(int(blockIdx.x / 2), shared, packed, lse, d_o, delta, spans, sequences,
                               dropout_step, d_packed, batch, kv_heads, group, seq_len, inv_tiles, inv_sms,
                               score_scale, key0, key1, threshold, drop_scale, soft_cap);
}
