// Flash attention, forward, in fp32. A block has ROWS queries of a head and goes through COLUMNS keys at a
// time.
//
// A tile of 64 by 32 scores is 4·4 per thread. Four columns of queries and keys take eight 16-byte reads from
// shared memory and 64 multiply-adds: half of the bandwidth of shared memory.
#include "tiles.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    flash_attention_fp32(const T *packed,         // [batch·seq_len, (heads + 2·kv_heads)·HEAD_DIM]
                         const Span *spans,       // [batch·seq_len], without CAUSAL
                         const u32 *sequences,    // [batch], with DROPOUT
                         const u32 *dropout_step, // [1], with DROPOUT
                         T *o,                    // = [batch·seq_len, heads·HEAD_DIM]
                         float *lse,              // = [batch·seq_len, heads]
                         int batch, int kv_heads, int group, int seq_len, u32 inv_tiles, u32 inv_group,
                         float score_scale, u32 key0, u32 key1, u32 threshold, float drop_scale,
                         float soft_cap) {
    extern __shared__ __align__(16) float shared_floats[];
    float *queries = shared_floats, *keys = queries + ROWS * STRIDE, *values = keys + COLUMNS * STRIDE;
    float *square = values + COLUMNS * STRIDE;
    int tiles = (seq_len + ROWS - 1) / ROWS;
    BlockWork work = work_of_block(tiles, inv_tiles);
    if (work.sequence >= batch) return;
    int t = (tiles - 1 - work.tile) * ROWS, x = thread_x(), y = thread_y();

    int heads = kv_heads * group, width = (heads + 2 * kv_heads) * HEAD_DIM;
    i64 first_row = i64(work.sequence) * seq_len;
    const T *rows = packed + first_row * width;
    const T *k_rows = rows + (heads + divide(work.head, inv_group)) * HEAD_DIM,
            *v_rows = k_rows + kv_heads * HEAD_DIM;
    if (!CAUSAL) spans += first_row;
    Drops drops = {key0, key1, threshold, drop_scale};
    Dropout dropout(drops, DROPOUT ? *dropout_step : 0, DROPOUT ? sequences[work.sequence] : 0, work.head,
                    seq_len);

    copy_rows<ROWS>(queries, rows + i64(t) * width + work.head * HEAD_DIM, width, seq_len - t);
    AccurateScore score(score_scale, soft_cap);
    Result sums = {};
    float running_max[ROWS_EACH], row_sum[ROWS_EACH] = {};
    KeyRange visible[ROWS_EACH], gaps[ROWS_EACH];
#pragma unroll
    for (int i = 0; i < ROWS_EACH; i++) {
        running_max[i] = -infinity();
        visible[i] = visible_keys(spans, t + y + 16 * i, seq_len);
        gaps[i] = hidden_keys(spans, t + y + 16 * i, seq_len);
    }
    KeyRange block_keys = keys_visible_to_any(spans, t, t + ROWS, seq_len);
    for (int key = block_keys.first / COLUMNS * COLUMNS; key < block_keys.end; key += COLUMNS) {
        __syncthreads();
        copy_rows<COLUMNS>(keys, k_rows + i64(key) * width, width, seq_len - key);
        copy_rows<COLUMNS, VALUE_DIM>(values, v_rows + i64(key) * width, width, seq_len - key);
        __syncthreads();
        Square p = {};
        multiply_rows(p, queries, keys);
        u32 kept = 0;
        if (DROPOUT)
            kept = split_calls<ROWS_EACH * COLUMNS_EACH, 8>(x, dropout, [&](int c) {
                u32 row = dropout.row + t + y + 16 * (c / COLUMNS_EACH);
                return draws(drops, dropout.step, dropout.sequence, row, key / 8 + c % COLUMNS_EACH);
            });
#pragma unroll
        for (int i = 0; i < ROWS_EACH; i++) {
            float new_max = running_max[i];
#pragma unroll
            for (int j = 0; j < COLUMNS_EACH; j++) {
                p[i][j] = is_visible(visible[i], gaps[i], key + x + 8 * j) ? score(p[i][j]) : -infinity();
                new_max = fmaxf(new_max, p[i][j]);
            }
            new_max = row_reduce(new_max, Max());
            // Before the first visible key, probabilities are relative to 1.
            float shift = new_max == -infinity() ? 0.0f : new_max, factor = expf(running_max[i] - shift);
            running_max[i] = new_max;
            row_sum[i] *= factor;
#pragma unroll
            for (int n = 0; n < WIDTHS_EACH; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) sums[i][n][e] *= factor;
#pragma unroll
            for (int j = 0; j < COLUMNS_EACH; j++) {
                p[i][j] = expf(p[i][j] - shift);
                row_sum[i] += p[i][j];
            }
        }
        if (DROPOUT) {
#pragma unroll
            for (int i = 0; i < ROWS_EACH; i++)
#pragma unroll
                for (int j = 0; j < COLUMNS_EACH; j++) {
                    int c = i * COLUMNS_EACH + j;
                    u32 bits = __shfl_sync(FULL_WARP, kept, threadIdx.x % WARP - x + c % 8);
                    if (!is_kept(bits, c / 8, x)) p[i][j] = 0.0f;
                }
        }
        store_square(square, p);
        __syncwarp();
        multiply_columns(sums, square, values);
    }

#pragma unroll
    for (int i = 0; i < ROWS_EACH; i++) {
        int row = y + 16 * i;
        float total = row_reduce(row_sum[i], Add());
        if (x == 0 && t + row < seq_len)
            lse[(first_row + t + row) * heads + work.head] = running_max[i] + logf(total);
        // A query without visible keys yields zeros.
        row_sum[i] = total == 0.0f ? 0.0f : (DROPOUT ? drop_scale : 1.0f) / total;
    }
    store_rows(o + ((first_row + t) * heads + work.head) * HEAD_DIM, heads * HEAD_DIM, sums, row_sum,
               seq_len - t);
}
