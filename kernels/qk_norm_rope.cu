// Norm of every query and key head, then rotation by the angles of its position, and the gradient of both.
//
// Definitions beside those of heads.cuh: ROTATES (0 leaves the rotation out; positions are not read then).
#include "heads.cuh"

// For the bounds on registers: true if a thread holds no more of a head than usual, and if all lanes hold
// some of it.
constexpr bool SMALL = HELD * VEC <= 8, WHOLE = HALF % (LANES * VEC) == 0;

__device__ __forceinline__ float inverse_root(float squares, float eps) {
    return rsqrtf(fmaf(squares, 1.0f / DIM, eps));
}

// wq, then wk.
__device__ __forceinline__ void fill_weights(const float *wq, const float *wk, float (&weights)[2][DIM]) {
    for (int c = threadIdx.x; c < 2 * DIM; c += THREADS)
        weights[c / DIM][c % DIM] = c < DIM ? wq[c] : wk[c - DIM];
}

__device__ __forceinline__ void load_halves(const float *row, int column, float (&low)[VEC],
                                            float (&high)[VEC]) {
    load(row + column, low);
    load(row + HALF + column, high);
}

// x, y: packed rows [rows, ROW]; wq, wk: [DIM]; positions: [rows]. y may lie over x; where it does not,
// `copies` says that values have to be copied. A block handles `run` rows.
extern "C" __global__ void __launch_bounds__(THREADS, !SMALL ? 1 : WHOLE ? 4 : 3)
    qk_norm_rope(const T *x, const float *wq, const float *wk, const u32 *positions, T *y, int rows, int run,
                 float eps, u32 copies) {
    __shared__ __align__(16) float angles[ROTATES ? TILE : 1][DIM], weights[2][DIM];
    HeadSlots slots;
    fill_weights(wq, wk, weights);
    int first = blockIdx.x * run, end = min(first + run, rows);
    if (copies) copy_values(x + i64(first) * ROW, y + i64(first) * ROW, end - first);
    for (int tile = first; tile < end; tile += TILE) {
        int tile_rows = min(TILE, end - tile), heads = tile_rows * slots.heads();
        const T *from = x + i64(tile) * ROW;
        T *to = y + i64(tile) * ROW;
        HeadPart next;
        load_head_part(from + slots.at(slots.first), slots.first < heads, next);
        if (tile > first) __syncthreads();
        if constexpr (ROTATES) fill_angles(positions + tile, tile_rows, angles);
        __syncthreads();
        // All lanes of a warp make as many passes, because they sum together.
#pragma unroll 1
        for (int head = slots.first; head - slots.first < heads; head += slots.step) {
            HeadPart part = next;
            bool live = head < heads;
            load_head_part(from + slots.at(head + slots.step), head + slots.step < heads, next);
            float low[HELD][VEC], high[HELD][VEC], squares = 0.0f;
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                unpack(part.low[i], low[i]);
                unpack(part.high[i], high[i]);
#pragma unroll
                for (int c = 0; c < VEC; c++) {
                    squares = fmaf(high[i][c], high[i][c], fmaf(low[i][c], low[i][c], squares));
                }
            }
            float scale = inverse_root(warp_reduce<LANES>(squares, Add()), eps);
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                if (!live || !in_half(i)) continue;
                int column = HeadSlots::column() + i * LANES * VEC;
                float cosine[VEC], sine[VEC], low_weight[VEC], high_weight[VEC];
                if constexpr (ROTATES) load_halves(angles[slots.row(head)], column, cosine, sine);
                load_halves(weights[slots.key], column, low_weight, high_weight);
#pragma unroll
                for (int c = 0; c < VEC; c++) {
                    float a = low[i][c] * scale * low_weight[c], b = high[i][c] * scale * high_weight[c];
                    low[i][c] = ROTATES ? a * cosine[c] - b * sine[c] : a;
                    high[i][c] = ROTATES ? b * cosine[c] + a * sine[c] : b;
                }
                T *out = to + slots.at(head) + i * LANES * VEC;
                store(out, low[i]);
                store(out + HALF, high[i]);
            }
        }
    }
}

// With s = 1 / √(mean(x²) + eps) and g the gradient rotated back: dx = s·g·w − x·s³·mean(g·w·x). Block b
// leaves Σ g·x·s over its `run` rows in row b of the partials: DIM columns of queries, then of keys.
//
// x, dy, dx: packed rows [rows, ROW]; wq, wk: [DIM]; positions: [rows]; partials: [blocks, 2·DIM]. dx may lie
// over x or dy; where it is not dy, `copies` says that gradients of values have to be copied.
extern "C" __global__ void __launch_bounds__(THREADS, SMALL ? 2 : 1)
    qk_norm_rope_grad(const T *x, const float *wq, const float *wk, const u32 *positions, const T *dy, T *dx,
                      float *partials, int rows, int run, float eps, u32 copies) {
    __shared__ __align__(16) float shared[TILE > WARPS ? TILE : WARPS][DIM], weights[2][DIM];
    HeadSlots slots;
    float low_sum[HELD][VEC] = {}, high_sum[HELD][VEC] = {};
    fill_weights(wq, wk, weights);
    int first = blockIdx.x * run, end = min(first + run, rows);
    if (copies) copy_values(dy + i64(first) * ROW, dx + i64(first) * ROW, end - first);
    for (int tile = first; tile < end; tile += TILE) {
        int tile_rows = min(TILE, end - tile), heads = tile_rows * slots.heads();
        const T *from = x + i64(tile) * ROW, *upstream = dy + i64(tile) * ROW;
        T *to = dx + i64(tile) * ROW;
        HeadPart next, next_upstream;
        load_head_part(from + slots.at(slots.first), slots.first < heads, next);
        load_head_part(upstream + slots.at(slots.first), slots.first < heads, next_upstream);
        if (tile > first) __syncthreads();
        if constexpr (ROTATES) fill_angles(positions + tile, tile_rows, shared);
        __syncthreads();
#pragma unroll 1
        for (int head = slots.first; head - slots.first < heads; head += slots.step) {
            HeadPart part = next, part_upstream = next_upstream;
            bool live = head < heads;
            load_head_part(from + slots.at(head + slots.step), head + slots.step < heads, next);
            load_head_part(upstream + slots.at(head + slots.step), head + slots.step < heads, next_upstream);
            float low[HELD][VEC], high[HELD][VEC], g_low[HELD][VEC], g_high[HELD][VEC];
            float squares = 0.0f, product = 0.0f;
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                unpack(part.low[i], low[i]);
                unpack(part.high[i], high[i]);
                unpack(part_upstream.low[i], g_low[i]);
                unpack(part_upstream.high[i], g_high[i]);
                if (!live || !in_half(i)) continue;
                int column = HeadSlots::column() + i * LANES * VEC;
                float cosine[VEC], sine[VEC], low_weight[VEC], high_weight[VEC];
                if constexpr (ROTATES) load_halves(shared[slots.row(head)], column, cosine, sine);
                load_halves(weights[slots.key], column, low_weight, high_weight);
#pragma unroll
                for (int c = 0; c < VEC; c++) {
                    float a = g_low[i][c], b = g_high[i][c];
                    if constexpr (ROTATES) {
                        g_low[i][c] = a * cosine[c] + b * sine[c];
                        g_high[i][c] = b * cosine[c] - a * sine[c];
                    }
                    squares = fmaf(high[i][c], high[i][c], fmaf(low[i][c], low[i][c], squares));
                    product = fmaf(g_low[i][c] * low_weight[c], low[i][c], product);
                    product = fmaf(g_high[i][c] * high_weight[c], high[i][c], product);
                }
            }
            squares = warp_reduce<LANES>(squares, Add());
            product = warp_reduce<LANES>(product, Add());
            float scale = inverse_root(squares, eps), pull = product * (1.0f / DIM) * scale * scale * scale;
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                if (!live || !in_half(i)) continue;
                float low_weight[VEC], high_weight[VEC];
                load_halves(weights[slots.key], HeadSlots::column() + i * LANES * VEC, low_weight,
                            high_weight);
#pragma unroll
                for (int c = 0; c < VEC; c++) {
                    low_sum[i][c] = fmaf(g_low[i][c], low[i][c] * scale, low_sum[i][c]);
                    high_sum[i][c] = fmaf(g_high[i][c], high[i][c] * scale, high_sum[i][c]);
                    g_low[i][c] = fmaf(g_low[i][c] * low_weight[c], scale, -(low[i][c] * pull));
                    g_high[i][c] = fmaf(g_high[i][c] * high_weight[c], scale, -(high[i][c] * pull));
                }
                T *out = to + slots.at(head) + i * LANES * VEC;
                store(out, g_low[i]);
                store(out + HALF, g_high[i]);
            }
        }
    }
    // The lanes of a warp that hold the same columns, then the warps.
    __syncthreads();
    int warp = threadIdx.x / WARP;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
#pragma unroll
        for (int c = 0; c < VEC; c++) {
#pragma unroll
            for (int step = WARP / 2; step >= LANES; step /= 2) {
                low_sum[i][c] += __shfl_xor_sync(FULL_WARP, low_sum[i][c], step);
                high_sum[i][c] += __shfl_xor_sync(FULL_WARP, high_sum[i][c], step);
            }
        }
        if (threadIdx.x % WARP >= LANES || !in_half(i)) continue;
        float *out = shared[warp] + HeadSlots::column() + i * LANES * VEC;
        store(out, low_sum[i]);
        store(out + HALF, high_sum[i]);
    }
    __syncthreads();
    for (int column = threadIdx.x; column < 2 * DIM; column += THREADS) {
        bool key = column >= DIM;
        float sum = 0.0f;
        for (int w = key ? QUERY_WARPS : 0; w < (key ? WARPS : QUERY_WARPS); w++)
            sum += shared[w][column - key * DIM];
        partials[i64(blockIdx.x) * 2 * DIM + column] = sum;
    }
}
