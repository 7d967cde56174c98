// Root-mean-square norm of rows, and its gradient. Without WEIGHT, w and partials are null.
#include "norm.cuh"

// y = x / √(mean(x²) + eps) ⊙ w. x, y: [rows, WIDTH]; w: [WIDTH]. y may be the same memory as x.
extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm(const T *x, const float *__restrict__ w, T *y, int rows, float inv_n, float eps) {
    let_next_begin();
    int row = blockIdx.x * TEAMS + team();
    bool live = row < rows;
    i64 start = i64(row) * WIDTH + column();
    Pack<T, VEC> held[PACKS_PER_THREAD];
    load_row(x + start, live, held);
    store_normed(held, w + column(), y + start, live, inv_n, eps);
}

// Keeps the compiler from unpacking a pack into twice the registers before it is needed.
__device__ __forceinline__ void hold(Pack<bf16, 8> &pack) {
    asm volatile("" : "+r"(pack.pairs.x), "+r"(pack.pairs.y), "+r"(pack.pairs.z), "+r"(pack.pairs.w));
}
template <typename E, int N> __device__ __forceinline__ void hold(Pack<E, N> &) {}

// With s = 1 / √(mean(x²) + eps) and g = dy ⊙ w: dx = s·g − x·s³·mean(g ⊙ x), plus dr with RESIDUAL. Block b
// writes Σ dy ⊙ x·s over its `run` rows to row b of the partials. With EMITS, also writes y as the forward
// pass does.
//
// w is not __restrict__, so that its loads stay where they are instead of filling registers before the loops.
template <bool RESIDUAL, bool EMITS>
__device__ __forceinline__ void gradient(const T *x, const float *w, const T *dy, const T *dr, T *dx,
                                         float *partials, T *y, int rows, int run, float inv_n, float eps) {
    float dw[PACKS_PER_THREAD][VEC] = {};
    w += column();
    int first = blockIdx.x * run;
    i64 at = i64(first + team()) * WIDTH + column();
    for (int left = min(run, rows - first); left > 0; left -= TEAMS, at += TEAMS * WIDTH) {
        bool live = team() < left;
        Pack<T, VEC> held[PACKS_PER_THREAD], upstream[PACKS_PER_THREAD], bypass[PACKS_PER_THREAD];
        load_row(x + at, live, held);
        load_row(dy + at, live, upstream);
        if constexpr (RESIDUAL) load_row(dr + at, live, bypass);
        float sums[2] = {0.0f, 0.0f}, scale = 0.0f, pull = 0.0f;
        // One loop body serves both the sums and the results. With two bodies, the compiler would keep the
        // weights and the unpacked numbers of the first for the second.
#pragma unroll 1
        for (int pass = 0; pass < 2; pass++) {
#pragma unroll
            for (int i = 0; i < PACKS_PER_THREAD; i++) {
                if (!in_row(i)) continue;
                float a[VEC], g[VEC], weight[VEC];
                hold(held[i]);
                hold(upstream[i]);
                unpack(held[i], a);
                unpack(upstream[i], g);
                load_weight(w + i * STRIDE, weight);
                if (pass == 0) {
                    sums[0] = add_squares(a, sums[0]);
#pragma unroll
                    for (int c = 0; c < VEC; c++) sums[1] = fmaf(g[c] * weight[c], a[c], sums[1]);
                } else if (live) {
                    float d[VEC] = {};
                    if constexpr (RESIDUAL) {
                        hold(bypass[i]);
                        unpack(bypass[i], d);
                    }
#pragma unroll
                    for (int c = 0; c < VEC; c++) {
                        if constexpr (WEIGHT) dw[i][c] = fmaf(g[c], a[c] * scale, dw[i][c]);
                        d[c] += fmaf(g[c] * weight[c], scale, -(a[c] * pull));
                    }
                    store(dx + at + i * STRIDE, d);
                    if constexpr (EMITS) {
                        normalize(a, scale, weight);
                        store(y + at + i * STRIDE, a);
                    }
                }
            }
            if (pass == 1) break;
            team_sums(sums);
            scale = inverse_root(sums[0], inv_n, eps);
            pull = sums[1] * inv_n * scale * scale * scale;
        }
    }
    if constexpr (WEIGHT) store_columns(dw, partials + i64(blockIdx.x) * WIDTH);
}

// x, dy, dx: [rows, WIDTH]; w: [WIDTH]; partials: [blocks, WIDTH]. dx may be the same memory as x or dy.
extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    rms_norm_grad(const T *x, const float *w, const T *dy, T *dx, float *partials, int rows, int run,
                  float inv_n, float eps) {
    gradient<false, false>(x, w, dy, nullptr, dx, partials, nullptr, rows, run, inv_n, eps);
}

// Adds dr [rows, WIDTH] to dx, which may also be the same memory as dr.
extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    rms_norm_residual_grad(const T *x, const float *w, const T *dy, const T *dr, T *dx, float *partials,
                           int rows, int run, float inv_n, float eps) {
    gradient<true, false>(x, w, dy, dr, dx, partials, nullptr, rows, run, inv_n, eps);
}

// Both kernels also write y [rows, WIDTH]. It may reuse the memory of x, dy or dr that dx does not use.
extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    rms_norm_grad_emitting(const T *x, const float *w, const T *dy, T *dx, float *partials, T *y, int rows,
                           int run, float inv_n, float eps) {
    gradient<false, true>(x, w, dy, nullptr, dx, partials, y, rows, run, inv_n, eps);
}
extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    rms_norm_residual_grad_emitting(const T *x, const float *w, const T *dy, const T *dr, T *dx,
                                    float *partials, T *y, int rows, int run, float inv_n, float eps) {
    gradient<true, true>(x, w, dy, dr, dx, partials, y, rows, run, inv_n, eps);
}
