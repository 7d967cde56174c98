// Norm of every query and key head, rotation by the angles of its position, and the gradient of both.
//
// Definitions besides heads.cuh's: ROTATES (0 leaves out the rotation, and positions are not read);
// ROTATES_FIRST (1 if the rotation comes before the norm); WEIGHTED (0 leaves out the weights of the norm and
// their gradient, and neither they nor partial sums are accessed); WEIGHT_OFFSET (added to the weights);
// VALUES_APART (1 if the values of x are rows of their own).
#include "heads.cuh"

// Elements of a row of x, and of a row of its values.
constexpr int X_WIDTH = VALUES_APART ? V_OFFSET : QKV_WIDTH;
constexpr int VALUES_WIDTH = VALUES_APART ? QKV_WIDTH - V_OFFSET : QKV_WIDTH;

constexpr bool ROTATES_LAST = ROTATES && !ROTATES_FIRST;

// For the bounds on registers: SMALL is true if a thread holds at most 8 pairs of a head, WHOLE if all lanes
// hold equal parts of it.
constexpr bool SMALL = PACKS_PER_THREAD * VEC <= 8, WHOLE = HALF_DIM % (LANES * VEC) == 0;

__device__ __forceinline__ float inverse_root(float squares, float eps) {
    return rsqrtf(fmaf(squares, 1.0f / HEAD_DIM, eps));
}

// Fills in wq, then wk, with their offset, each in the order of slots.
__device__ __forceinline__ void fill_weights(const float *wq, const float *wk,
                                             float (&weights)[2][HEAD_DIM]) {
    for (int c = threadIdx.x; c < 2 * HEAD_DIM; c += THREADS) {
        float weight = c < HEAD_DIM ? wq[column_of_slot(c)] : wk[column_of_slot(c - HEAD_DIM)];
        if constexpr (WEIGHT_OFFSET != 0.0f) weight += WEIGHT_OFFSET;
        weights[c / HEAD_DIM][c % HEAD_DIM] = weight;
    }
}

__device__ __forceinline__ void load_halves(const float *row, int column, float (&low)[VEC],
                                            float (&high)[VEC]) {
    load(row + column, low);
    load(row + HALF_DIM + column, high);
}

// Multiplies an element by the weight of its column if there are weights.
__device__ __forceinline__ float weighted(float x, float weight) { return WEIGHTED ? x * weight : x; }

// Rotates pairs by the angles whose cosines and sines are at `column` of a row, forwards or backwards.
template <bool forth>
__device__ __forceinline__ void rotate(const float *row, int column, float (&low)[VEC], float (&high)[VEC]) {
    float cosine[VEC], sine[VEC];
    load_halves(row, column, cosine, sine);
#pragma unroll
    for (int c = 0; c < VEC; c++) {
        float a = low[c], b = high[c];
        low[c] = forth ? a * cosine[c] - b * sine[c] : a * cosine[c] + b * sine[c];
        high[c] = forth ? b * cosine[c] + a * sine[c] : b * cosine[c] - a * sine[c];
    }
}

// x: [rows, X_WIDTH]; v: [rows, VALUES_WIDTH] with VALUES_APART; y: [rows, QKV_WIDTH]; wq, wk: [HEAD_DIM];
// positions: [rows]. y may be x itself; if not, `copies_v` is 1, and the value heads are copied. A block
// handles `rows_per_block` rows.
extern "C" __global__ void __launch_bounds__(THREADS, !SMALL ? 1 : WHOLE ? 4 : 3)
    qk_norm_rope(const T *x, const float *wq, const float *wk, const u32 *positions, const T *v, T *y,
                 int rows, int rows_per_block, float eps, u32 copies_v) {
    __shared__ __align__(16) float cos_sin[ROTATES ? TILE_ROWS : 1][HEAD_DIM], weights[2][HEAD_DIM];
    let_next_begin();
    ThreadHeads own;
    if constexpr (WEIGHTED) fill_weights(wq, wk, weights);
    int first = block_from_last() * rows_per_block, end = min(first + rows_per_block, rows);
    if (copies_v)
        copy_v((VALUES_APART ? v : x + V_OFFSET) + i64(first) * VALUES_WIDTH, VALUES_WIDTH,
               y + V_OFFSET + i64(first) * QKV_WIDTH, QKV_WIDTH, end - first);
    for (int tile = first; tile < end; tile += TILE_ROWS) {
        int tile_rows = min(TILE_ROWS, end - tile), heads = tile_rows * own.per_row();
        const T *from = x + i64(tile) * X_WIDTH;
        T *to = y + i64(tile) * QKV_WIDTH;
        HeadPacks next;
        load_head_packs(from + own.at(own.first, X_WIDTH), own.first < heads, next);
        if (tile > first) __syncthreads();
        if constexpr (ROTATES) fill_cos_sin(positions + tile, tile_rows, cos_sin);
        __syncthreads();
        // All lanes of a warp make the same number of passes, because they sum together.
#pragma unroll 1
        for (int head = own.first; head - own.first < heads; head += own.step) {
            HeadPacks part = next;
            bool live = head < heads;
            load_head_packs(from + own.at(head + own.step, X_WIDTH), head + own.step < heads, next);
            float low[PACKS_PER_THREAD][VEC], high[PACKS_PER_THREAD][VEC], squares = 0.0f;
#pragma unroll
            for (int i = 0; i < PACKS_PER_THREAD; i++) {
                unpack(part.low[i], low[i]);
                unpack(part.high[i], high[i]);
                if constexpr (ROTATES_FIRST) {
                    int column = ThreadHeads::column() + i * LANES * VEC;
                    if (live && pack_in_half(i))
                        rotate<true>(cos_sin[own.row(head)], column, low[i], high[i]);
                }
#pragma unroll
                for (int c = 0; c < VEC; c++) {
                    squares = fmaf(high[i][c], high[i][c], fmaf(low[i][c], low[i][c], squares));
                }
            }
            float scale = inverse_root(warp_reduce<LANES>(squares, Add()), eps);
#pragma unroll
            for (int i = 0; i < PACKS_PER_THREAD; i++) {
                if (!live || !pack_in_half(i)) continue;
                int column = ThreadHeads::column() + i * LANES * VEC;
                float cosine[VEC], sine[VEC], low_weight[VEC], high_weight[VEC];
                if constexpr (ROTATES_LAST) load_halves(cos_sin[own.row(head)], column, cosine, sine);
                if constexpr (WEIGHTED) load_halves(weights[own.key], column, low_weight, high_weight);
#pragma unroll
                for (int c = 0; c < VEC; c++) {
                    float a = weighted(low[i][c] * scale, low_weight[c]);
                    float b = weighted(high[i][c] * scale, high_weight[c]);
                    low[i][c] = ROTATES_LAST ? a * cosine[c] - b * sine[c] : a;
                    high[i][c] = ROTATES_LAST ? b * cosine[c] + a * sine[c] : b;
                }
                T *out = to + own.at(head);
                store(out + own.low(i), low[i]);
                store(out + own.high(i), high[i]);
            }
        }
    }
}

// Let u be the input of the norm (x, or x rotated), s = 1 / √(mean(u²) + eps), and g the gradient of the
// norm's output (rotated back if the rotation comes after the norm). Then du = s·g·w − u·s³·mean(g·w·u); dx
// is du, rotated back if x was rotated. Block b writes Σ g·u·s over its `rows_per_block` rows to row b of the
// partials: HEAD_DIM columns for wq, then for wk.
//
// x, dx: [rows, X_WIDTH]; dv: [rows, VALUES_WIDTH] with VALUES_APART; dy: [rows, QKV_WIDTH]; wq, wk:
// [HEAD_DIM]; positions: [rows]; partials: [blocks, 2·HEAD_DIM]. dx may be x or dy itself; if it is not dy,
// `copies_v` is 1, and the gradients of the value heads are copied.
extern "C" __global__ void __launch_bounds__(THREADS, SMALL ? 2 : 1)
    qk_norm_rope_grad(const T *x, const float *wq, const float *wk, const u32 *positions, const T *dy, T *dx,
                      T *dv, float *partials, int rows, int rows_per_block, float eps, u32 copies_v) {
    __shared__ __align__(16) float shared[TILE_ROWS > WARPS ? TILE_ROWS : WARPS][HEAD_DIM];
    __shared__ __align__(16) float weights[2][HEAD_DIM];
    ThreadHeads own;
    float low_sum[PACKS_PER_THREAD][VEC] = {}, high_sum[PACKS_PER_THREAD][VEC] = {};
    if constexpr (WEIGHTED) fill_weights(wq, wk, weights);
    int first = block_from_last() * rows_per_block, end = min(first + rows_per_block, rows);
    if (copies_v)
        copy_v(dy + V_OFFSET + i64(first) * QKV_WIDTH, QKV_WIDTH,
               (VALUES_APART ? dv : dx + V_OFFSET) + i64(first) * VALUES_WIDTH, VALUES_WIDTH, end - first);
    for (int tile = first; tile < end; tile += TILE_ROWS) {
        int tile_rows = min(TILE_ROWS, end - tile), heads = tile_rows * own.per_row();
        const T *from = x + i64(tile) * X_WIDTH, *upstream = dy + i64(tile) * QKV_WIDTH;
        T *to = dx + i64(tile) * X_WIDTH;
        HeadPacks next, next_upstream;
        load_head_packs(from + own.at(own.first, X_WIDTH), own.first < heads, next);
        load_head_packs(upstream + own.at(own.first), own.first < heads, next_upstream);
        if (tile > first) __syncthreads();
        if constexpr (ROTATES) fill_cos_sin(positions + tile, tile_rows, shared);
        __syncthreads();
#pragma unroll 1
        for (int head = own.first; head - own.first < heads; head += own.step) {
            HeadPacks part = next, part_upstream = next_upstream;
            bool live = head < heads;
            load_head_packs(from + own.at(head + own.step, X_WIDTH), head + own.step < heads, next);
            load_head_packs(upstream + own.at(head + own.step), head + own.step < heads, next_upstream);
            float low[PACKS_PER_THREAD][VEC], high[PACKS_PER_THREAD][VEC];
            float g_low[PACKS_PER_THREAD][VEC], g_high[PACKS_PER_THREAD][VEC];
            float squares = 0.0f, product = 0.0f;
#pragma unroll
            for (int i = 0; i < PACKS_PER_THREAD; i++) {
                unpack(part.low[i], low[i]);
                unpack(part.high[i], high[i]);
                unpack(part_upstream.low[i], g_low[i]);
                unpack(part_upstream.high[i], g_high[i]);
                if (!live || !pack_in_half(i)) continue;
                int column = ThreadHeads::column() + i * LANES * VEC;
                float cosine[VEC], sine[VEC], low_weight[VEC], high_weight[VEC];
                if constexpr (ROTATES_FIRST) rotate<true>(shared[own.row(head)], column, low[i], high[i]);
                if constexpr (ROTATES_LAST) load_halves(shared[own.row(head)], column, cosine, sine);
                if constexpr (WEIGHTED) load_halves(weights[own.key], column, low_weight, high_weight);
#pragma unroll
                for (int c = 0; c < VEC; c++) {
                    float a = g_low[i][c], b = g_high[i][c];
                    if constexpr (ROTATES_LAST) {
                        g_low[i][c] = a * cosine[c] + b * sine[c];
                        g_high[i][c] = b * cosine[c] - a * sine[c];
                    }
                    squares = fmaf(high[i][c], high[i][c], fmaf(low[i][c], low[i][c], squares));
                    product = fmaf(weighted(g_low[i][c], low_weight[c]), low[i][c], product);
                    product = fmaf(weighted(g_high[i][c], high_weight[c]), high[i][c], product);
                }
            }
            squares = warp_reduce<LANES>(squares, Add());
            product = warp_reduce<LANES>(product, Add());
            float scale = inverse_root(squares, eps);
            float pull = product * (1.0f / HEAD_DIM) * scale * scale * scale;
#pragma unroll
            for (int i = 0; i < PACKS_PER_THREAD; i++) {
                if (!live || !pack_in_half(i)) continue;
                int column = ThreadHeads::column() + i * LANES * VEC;
                float low_weight[VEC], high_weight[VEC];
                if constexpr (WEIGHTED) load_halves(weights[own.key], column, low_weight, high_weight);
#pragma unroll
                for (int c = 0; c < VEC; c++) {
                    if constexpr (WEIGHTED) {
                        low_sum[i][c] = fmaf(g_low[i][c], low[i][c] * scale, low_sum[i][c]);
                        high_sum[i][c] = fmaf(g_high[i][c], high[i][c] * scale, high_sum[i][c]);
                    }
                    g_low[i][c] = fmaf(weighted(g_low[i][c], low_weight[c]), scale, -(low[i][c] * pull));
                    g_high[i][c] = fmaf(weighted(g_high[i][c], high_weight[c]), scale, -(high[i][c] * pull));
                }
                if constexpr (ROTATES_FIRST)
                    rotate<false>(shared[own.row(head)], column, g_low[i], g_high[i]);
                T *out = to + own.at(head, X_WIDTH);
                store(out + own.low(i), g_low[i]);
                store(out + own.high(i), g_high[i]);
            }
        }
    }
    if constexpr (!WEIGHTED) return;
    // Sums over the lanes of a warp that hold the same columns, then over the warps.
    __syncthreads();
    int warp = threadIdx.x / WARP;
#pragma unroll
    for (int i = 0; i < PACKS_PER_THREAD; i++) {
#pragma unroll
        for (int c = 0; c < VEC; c++) {
#pragma unroll
            for (int step = WARP / 2; step >= LANES; step /= 2) {
                low_sum[i][c] += __shfl_xor_sync(FULL_WARP, low_sum[i][c], step);
                high_sum[i][c] += __shfl_xor_sync(FULL_WARP, high_sum[i][c], step);
            }
        }
        if (threadIdx.x % WARP >= LANES || !pack_in_half(i)) continue;
        float *out = shared[warp] + ThreadHeads::column() + i * LANES * VEC;
        store(out, low_sum[i]);
        store(out + HALF_DIM, high_sum[i]);
    }
    __syncthreads();
    for (int column = threadIdx.x; column < 2 * HEAD_DIM; column += THREADS) {
        bool key = column >= HEAD_DIM;
        int slot = column - key * HEAD_DIM;
        float sum = 0.0f;
        for (int w = key ? QUERY_WARPS : 0; w < (key ? WARPS : QUERY_WARPS); w++) sum += shared[w][slot];
        int place = column - slot + column_of_slot(slot);
        partials[i64(block_from_last()) * 2 * HEAD_DIM + place] = sum;
    }
}
