// Layer norm of rows, alone and after a residual addition, and its gradient. Teams of threads hold rows in
// registers (norm.cuh). If a row is padded, its first `count` elements are the row; padding is zero and stays
// zero. w is null without WEIGHT, b without BIAS, and the partials without both.
#include "norm.cuh"

// Mean of a row, and the reciprocal of its standard deviation.
struct Moments {
    float mean, scale;
};

// True if element c of this thread's i-th pack is one of the first `count` in the row.
__device__ __forceinline__ bool counted(int i, int c, int count) { return column() + i * STRIDE + c < count; }

// Makes two passes over the registers: it sums the squares of differences from the mean, which avoids
// cancellation. `inv_n` is 1 / count.
__device__ __forceinline__ Moments moments(const Pack<T, VEC> (&row)[PACKS_PER_THREAD], int count,
                                           float inv_n, float eps) {
    float sum[1] = {0.0f}, squares[1] = {0.0f};
#pragma unroll
    for (int i = 0; i < PACKS_PER_THREAD; i++) {
        float x[VEC];
        unpack(row[i], x);
#pragma unroll
        for (int c = 0; c < VEC; c++) sum[0] += x[c];
    }
    team_sums(sum);
    float mean = sum[0] * inv_n;
#pragma unroll
    for (int i = 0; i < PACKS_PER_THREAD; i++) {
        float x[VEC];
        unpack(row[i], x);
#pragma unroll
        for (int c = 0; c < VEC; c++) {
            float difference = counted(i, c, count) ? x[c] - mean : 0.0f;
            squares[0] = fmaf(difference, difference, squares[0]);
        }
    }
    team_sums(squares);
    return {mean, inverse_root(squares[0], inv_n, eps)};
}

// Loads a pack of the bias; zeros without BIAS.
__device__ __forceinline__ void load_bias(const float *from, float (&to)[VEC]) {
    if constexpr (BIAS) {
        load(from, to);
    } else {
#pragma unroll
        for (int c = 0; c < VEC; c++) to[c] = 0.0f;
    }
}

// Stores n = (row − mean) / √(variance + eps) ⊙ w + b for the teams whose row is live. `w`, `b` and `n` point
// to the thread's first pack. Weight and bias are zero in padding, and so is n.
__device__ __forceinline__ void store_layer_normed(const Pack<T, VEC> (&row)[PACKS_PER_THREAD],
                                                   const float *__restrict__ w, const float *__restrict__ b,
                                                   T *n, bool live, int count, float inv_n, float eps) {
    Moments m = moments(row, count, inv_n, eps);
#pragma unroll
    for (int i = 0; i < PACKS_PER_THREAD; i++) {
        if (!live || !in_row(i)) continue;
        float x[VEC], weight[VEC], bias[VEC];
        unpack(row[i], x);
        load_weight(w + i * STRIDE, weight);
        load_bias(b + i * STRIDE, bias);
#pragma unroll
        for (int c = 0; c < VEC; c++) {
            // A weight zeroes the padding; without one, this does.
            bool is_row = WEIGHT || counted(i, c, count);
            x[c] = is_row ? fmaf((x[c] - m.mean) * m.scale, weight[c], bias[c]) : 0.0f;
        }
        store(n + i * STRIDE, x);
    }
}

// x, y: [rows, WIDTH]; w, b: [WIDTH]. y may be the same memory as x.
extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm(const T *x, const float *__restrict__ w, const float *__restrict__ b, T *y, int rows,
               int count, float inv_n, float eps) {
    let_next_begin();
    int row = blockIdx.x * TEAMS + team();
    bool live = row < rows;
    i64 start = i64(row) * WIDTH + column();
    Pack<T, VEC> held[PACKS_PER_THREAD];
    load_row(x + start, live, held);
    store_layer_normed(held, w + column(), b + column(), y + start, live, count, inv_n, eps);
}

// r = x + y as stored, n = layer_norm(r). x, y, r, n: [rows, WIDTH]; w, b: [WIDTH]. r and n may reuse the
// memory of x and y.
extern "C" __global__ void __launch_bounds__(THREADS)
    residual_layer_norm(const T *x, const T *y, const float *__restrict__ w, const float *__restrict__ b,
                        T *r, T *n, int rows, int count, float inv_n, float eps) {
    let_next_begin();
    int row = blockIdx.x * TEAMS + team();
    bool live = row < rows;
    i64 start = i64(row) * WIDTH + column();
    Pack<T, VEC> sum[PACKS_PER_THREAD];
    add_rows(x + start, y + start, r + start, live, sum);
    store_layer_normed(sum, w + column(), b + column(), n + start, live, count, inv_n, eps);
}

// With s = 1 / √(variance + eps), x̂ = (x − mean)·s and g = dy ⊙ w: dx = s·(g − mean(g) − x̂·mean(g ⊙ x̂)),
// plus dr with RESIDUAL. Block k writes Σ dy ⊙ x̂ and Σ dy over its `run` rows side by side to row k of the
// partials.
template <bool RESIDUAL>
__device__ __forceinline__ void gradient(const T *x, const float *w, const T *dy, const T *dr, T *dx,
                                         float *partials, int rows, int run, int count, float inv_n,
                                         float eps) {
    float dw[PACKS_PER_THREAD][VEC] = {}, db[PACKS_PER_THREAD][VEC] = {};
    w += column();
    int first = blockIdx.x * run;
    i64 at = i64(first + team()) * WIDTH + column();
    for (int left = min(run, rows - first); left > 0; left -= TEAMS, at += TEAMS * WIDTH) {
        bool live = team() < left;
        Pack<T, VEC> held[PACKS_PER_THREAD], upstream[PACKS_PER_THREAD], bypass[PACKS_PER_THREAD];
        load_row(x + at, live, held);
        load_row(dy + at, live, upstream);
        if constexpr (RESIDUAL) load_row(dr + at, live, bypass);
        Moments m = moments(held, count, inv_n, eps);
        float means[2] = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < PACKS_PER_THREAD; i++) {
            if (!in_row(i)) continue;
            float a[VEC], g[VEC], weight[VEC];
            unpack(held[i], a);
            unpack(upstream[i], g);
            load_weight(w + i * STRIDE, weight);
#pragma unroll
            for (int c = 0; c < VEC; c++) {
                g[c] *= weight[c];
                means[0] += g[c];
                means[1] = fmaf(g[c], (a[c] - m.mean) * m.scale, means[1]);
            }
        }
        team_sums(means);
        means[0] *= inv_n;
        means[1] *= inv_n;
#pragma unroll
        for (int i = 0; i < PACKS_PER_THREAD; i++) {
            if (!live || !in_row(i)) continue;
            float a[VEC], g[VEC], weight[VEC], d[VEC] = {};
            unpack(held[i], a);
            unpack(upstream[i], g);
            load_weight(w + i * STRIDE, weight);
            if constexpr (RESIDUAL) unpack(bypass[i], d);
#pragma unroll
            for (int c = 0; c < VEC; c++) {
                float normal = (a[c] - m.mean) * m.scale;
                if constexpr (WEIGHT) dw[i][c] = fmaf(g[c], normal, dw[i][c]);
                if constexpr (BIAS) db[i][c] += g[c];
                if (counted(i, c, count))
                    d[c] += m.scale * (fmaf(g[c], weight[c], -means[0]) - normal * means[1]);
            }
            store(dx + at + i * STRIDE, d);
        }
    }
    partials += i64(blockIdx.x) * (WEIGHT + BIAS) * WIDTH;
    if constexpr (WEIGHT) store_columns(dw, partials);
    if constexpr (BIAS) store_columns(db, partials + WEIGHT * WIDTH);
}

// x, dy, dx: [rows, WIDTH]; w: [WIDTH]; partials: [blocks, (WEIGHT + BIAS)·WIDTH]. dx may be the same memory
// as x or dy.
extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    layer_norm_grad(const T *x, const float *w, const T *dy, T *dx, float *partials, int rows, int run,
                    int count, float inv_n, float eps) {
    gradient<false>(x, w, dy, nullptr, dx, partials, rows, run, count, inv_n, eps);
}

// Adds dr [rows, WIDTH] to dx, which may also be the same memory as dr.
extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    layer_norm_residual_grad(const T *x, const float *w, const T *dy, const T *dr, T *dx, float *partials,
                             int rows, int run, int count, float inv_n, float eps) {
    gradient<true>(x, w, dy, dr, dx, partials, rows, run, count, inv_n, eps);
}
