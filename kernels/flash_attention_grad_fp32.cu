// Flash attention, backward, in fp32: one pass for dQ, and one for dK and dV, as in flash_attention_grad.cu.
#include "tiles.cuh"

// P of a score, relative to the lse of its query.
__device__ __forceinline__ float probability(float score, float lse) { return expf(score - lse); }

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
flash_attention_grad_queries_fp32(const T *packed,         // [batch·seq_len, (heads + 2·kv_heads)·HEAD_DIM]
                                  const T *o,              // [batch·seq_len, heads·HEAD_DIM]
                                  const float *lse,        // [batch·seq_len, heads]
                                  const T *d_o,            // [batch·seq_len, heads·HEAD_DIM]
                                  const uint2 *spans,      // [batch·seq_len], without CAUSAL
                                  const u32 *sequences,    // [batch], with DROPOUT
                                  const u32 *dropout_step, // [1], with DROPOUT
                                  T *d_packed,             // = as packed, the queries' part
                                  float *delta,            // = [batch·seq_len, heads]: Σ dO∘O
                                  int batch, int kv_heads, int group, int seq_len, u32 inv_tiles,
                                  u32 inv_group, float score_scale, u32 key0, u32 key1, u32 threshold,
                                  float drop_scale, float soft_cap) {
    extern __shared__ __align__(16) float shared_floats[];
    float *queries = shared_floats, *d_outputs = queries + ROWS * STRIDE, *keys = d_outputs + ROWS * STRIDE;
    float *values = keys + COLUMNS * STRIDE, *square = values + COLUMNS * STRIDE;
    int tiles = (seq_len + ROWS - 1) / ROWS;
    BlockWork work = work_of_block(tiles, inv_tiles);
    if (work.sequence >= batch) return;
    int t = (tiles - 1 - work.tile) * ROWS, x = thread_x(), y = thread_y();

    int heads = kv_heads * group, width = (heads + 2 * kv_heads) * HEAD_DIM, o_width = heads * HEAD_DIM;
    i64 first_row = i64(work.sequence) * seq_len;
    const T *rows = packed + first_row * width;
    const T *k_rows = rows + (heads + divide(work.head, inv_group)) * HEAD_DIM,
            *v_rows = k_rows + kv_heads * HEAD_DIM;
    if (!CAUSAL) spans += first_row;
    Drops drops = {key0, key1, threshold, drop_scale};
    Dropout dropout(drops, DROPOUT ? *dropout_step : 0, DROPOUT ? sequences[work.sequence] : 0, work.head,
                    seq_len);

    i64 o_at = (first_row + t) * o_width + work.head * HEAD_DIM;
    copy_rows<ROWS>(queries, rows + i64(t) * width + work.head * HEAD_DIM, width, seq_len - t);
    copy_rows<ROWS, VALUE_DIM>(d_outputs, d_o + o_at, o_width, seq_len - t);
    __syncthreads();
    float minus_delta[ROWS_EACH], shift[ROWS_EACH];
    KeyRange visible[ROWS_EACH];
#pragma unroll
    for (int i = 0; i < ROWS_EACH; i++) {
        int row = y + 16 * i;
        bool valid = t + row < seq_len;
        i64 at = (first_row + t + (valid ? row : 0)) * heads + work.head;
        float sum = 0.0f;
        for (int column = x; valid && column < HEAD_DIM; column += 8)
            sum = fmaf(up(o[o_at + i64(row) * o_width + column]), d_outputs[row * STRIDE + column], sum);
        sum = row_reduce(sum, Add());
        if (x == 0 && valid) delta[at] = sum;
        minus_delta[i] = -sum;
        shift[i] = valid ? lse[at] : 0.0f;
        visible[i] = visible_keys(spans, t + row, seq_len);
    }

    AccurateScore score(score_scale, soft_cap);
    Result dq = {};
    KeyRange block_keys = keys_visible_to_any(spans, t, t + ROWS, seq_len);
    for (int key = block_keys.first / COLUMNS * COLUMNS; key < block_keys.end; key += COLUMNS) {
        __syncthreads();
        copy_rows<COLUMNS>(keys, k_rows + i64(key) * width, width, seq_len - key);
        copy_rows<COLUMNS, VALUE_DIM>(values, v_rows + i64(key) * width, width, seq_len - key);
        __syncthreads();
        Square s = {}, dp = {};
        multiply_rows(s, queries, keys);
        multiply_rows(dp, d_outputs, values);
        u32 kept = 0;
        if (DROPOUT)
            kept = split_calls<ROWS_EACH * COLUMNS_EACH, 8>(x, dropout, [&](int c) {
                u32 row = dropout.row + t + y + 16 * (c / COLUMNS_EACH);
                return draws(drops, dropout.step, dropout.sequence, row, key / 8 + c % COLUMNS_EACH);
            });
#pragma unroll
        for (int i = 0; i < ROWS_EACH; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS_EACH; j++) {
                if (DROPOUT) {
                    int c = i * COLUMNS_EACH + j;
                    u32 bits = __shfl_sync(FULL_WARP, kept, threadIdx.x % WARP - x + c % 8);
                    dp[i][j] = is_kept(bits, c / 8, x) ? dp[i][j] * drop_scale : 0.0f;
                }
                bool is_visible = contains(visible[i], key + x + 8 * j);
                float slope, capped = score(s[i][j], slope);
                s[i][j] = is_visible ? probability(capped, shift[i]) * (dp[i][j] + minus_delta[i]) * slope
                                     : 0.0f;
            }
        store_square(square, s);
        __syncwarp();
        multiply_columns(dq, square, keys);
    }

    float factor[ROWS_EACH];
#pragma unroll
    for (int i = 0; i < ROWS_EACH; i++) factor[i] = score_scale;
    store_rows(d_packed + (first_row + t) * width + work.head * HEAD_DIM, width, dq, factor, seq_len - t);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    flash_attention_grad_keys_fp32(const T *packed,         // [batch·seq_len, (heads + 2·kv_heads)·HEAD_DIM]
                                   const float *lse,        // [batch·seq_len, heads]
                                   const T *d_o,            // [batch·seq_len, heads·HEAD_DIM]
                                   const float *delta,      // [batch·seq_len, heads]: Σ dO∘O
                                   const uint2 *spans,      // [batch·seq_len], without CAUSAL
                                   const u32 *sequences,    // [batch], with DROPOUT
                                   const u32 *dropout_step, // [1], with DROPOUT
                                   T *d_packed,             // = as packed, the keys' and the values' part
                                   int batch, int kv_heads, int group, int seq_len, u32 inv_tiles,
                                   u32 inv_group, float score_scale, u32 key0, u32 key1, u32 threshold,
                                   float drop_scale, float soft_cap) {
    extern __shared__ __align__(16) float shared_floats[];
    float *keys = shared_floats, *values = keys + ROWS * STRIDE, *queries = values + ROWS * STRIDE;
    float *d_outputs = queries + COLUMNS * STRIDE, *p_square = d_outputs + COLUMNS * STRIDE;
    float *ds_square = p_square + ROWS * SQUARE_STRIDE;
    int tiles = (seq_len + ROWS - 1) / ROWS;
    BlockWork work = work_of_block(tiles, inv_tiles);
    if (work.sequence >= batch) return;
    int key = work.tile * ROWS, x = thread_x(), y = thread_y();

    int heads = kv_heads * group, width = (heads + 2 * kv_heads) * HEAD_DIM, o_width = heads * HEAD_DIM;
    i64 first_row = i64(work.sequence) * seq_len;
    if (!CAUSAL) spans += first_row;
    Drops drops = {key0, key1, threshold, drop_scale};
    u32 step = DROPOUT ? *dropout_step : 0, sequence = DROPOUT ? sequences[work.sequence] : 0;

    i64 k_at = (first_row + key) * width + (heads + work.head) * HEAD_DIM;
    copy_rows<ROWS>(keys, packed + k_at, width, seq_len - key);
    copy_rows<ROWS, VALUE_DIM>(values, packed + k_at + kv_heads * HEAD_DIM, width, seq_len - key);
    AccurateScore score(score_scale, soft_cap);
    Result dk = {}, dv = {};
    KeyRange queries_seeing = queries_seeing_any(spans, key, key + ROWS, seq_len);
    for (int head = work.head * group; head < (work.head + 1) * group; head++) {
        Dropout dropout(drops, step, sequence, head, seq_len);
        for (int t = queries_seeing.first / COLUMNS * COLUMNS; t < queries_seeing.end; t += COLUMNS) {
            __syncthreads();
            i64 row = first_row + t;
            copy_rows<COLUMNS>(queries, packed + row * width + head * HEAD_DIM, width, seq_len - t);
            copy_rows<COLUMNS, VALUE_DIM>(d_outputs, d_o + row * o_width + head * HEAD_DIM, o_width,
                                          seq_len - t);
            __syncthreads();
            Square p = {}, ds = {};
            multiply_rows(p, keys, queries);
            multiply_rows(ds, values, d_outputs);
            // Call c draws for query x + 8·(c % COLUMNS_EACH) and the eight keys of row y + 16·(c /
            // COLUMNS_EACH). The four rows of a warp split the calls.
            u32 kept = 0;
            if (DROPOUT)
                kept = split_calls<ROWS_EACH * COLUMNS_EACH, 4>(y % 4, dropout, [&](int c) {
                    u32 of_query = dropout.row + t + x + 8 * (c % COLUMNS_EACH);
                    return draws(drops, step, sequence, of_query, (key + y + 16 * (c / COLUMNS_EACH)) / 8);
                });
#pragma unroll
            for (int j = 0; j < COLUMNS_EACH; j++) {
                int column = x + 8 * j;
                KeyRange visible = visible_keys(spans, t + column, seq_len);
                i64 at = (row + (t + column < seq_len ? column : 0)) * heads + head;
                float shift = lse[at], sum = delta[at];
#pragma unroll
                for (int i = 0; i < ROWS_EACH; i++) {
                    float factor = 1.0f;
                    if (DROPOUT) {
                        int c = i * COLUMNS_EACH + j;
                        u32 bits = __shfl_sync(FULL_WARP, kept, c % 4 * 8 + x);
                        factor = is_kept(bits, c / 4, y % 8) ? drop_scale : 0.0f;
                    }
                    bool is_visible = contains(visible, key + y + 16 * i);
                    float slope, capped = score(p[i][j], slope);
                    float of_key = is_visible ? probability(capped, shift) : 0.0f;
                    ds[i][j] = of_key * (ds[i][j] * factor - sum) * slope;
                    p[i][j] = of_key * factor;
                }
            }
            store_square(p_square, p);
            store_square(ds_square, ds);
            __syncwarp();
            multiply_columns(dv, p_square, d_outputs);
            multiply_columns(dk, ds_square, queries);
        }
    }

    float k_factor[ROWS_EACH], v_factor[ROWS_EACH];
#pragma unroll
    for (int i = 0; i < ROWS_EACH; i++) k_factor[i] = score_scale, v_factor[i] = 1.0f;
    store_rows(d_packed + k_at, width, dk, k_factor, seq_len - key);
    store_rows(d_packed + k_at + kv_heads * HEAD_DIM, width, dv, v_factor, seq_len - key);
}
