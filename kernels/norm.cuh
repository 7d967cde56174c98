// Rows held in registers by teams of threads, and their root mean squares. All kernels that normalize a row
// with this header get the same bits.
//
// Definitions: T, WIDTH (elements of a row), VEC (elements that a thread moves at once, a divisor of WIDTH),
// TEAM (threads per row, a power of two), THREADS (per block, a multiple of TEAM), WEIGHT (1 if rows are
// multiplied by a weight), WEIGHT_OFFSET (added to the weight) and BIAS (1 if a bias is added). An absent
// vector is a null pointer.
#pragma once
#include "common.cuh"

// Rows that a block handles at a time.
constexpr int TEAMS = THREADS / TEAM;
// Packs of a row that a thread holds: the one with its number in the team, then every TEAM-th.
constexpr int PACKS_PER_THREAD = (WIDTH / VEC + TEAM - 1) / TEAM;

__device__ __forceinline__ int team() { return threadIdx.x / TEAM; }
// The column of a thread's first pack; the others follow at distances of STRIDE.
__device__ __forceinline__ int column() { return int(threadIdx.x) % TEAM * VEC; }
constexpr int STRIDE = TEAM * VEC;
// True if this thread's i-th pack lies in the row; a constant except for the last pack.
__device__ __forceinline__ bool in_row(int i) {
    return (i + 1) * STRIDE <= WIDTH || column() + i * STRIDE < WIDTH;
}

// Loads a thread's part of a row, from its first pack on; zeros beyond the row.
__device__ __forceinline__ void load_row(const T *from, bool live, Pack<T, VEC> (&to)[PACKS_PER_THREAD]) {
#pragma unroll
    for (int i = 0; i < PACKS_PER_THREAD; i++) {
        to[i] = Pack<T, VEC>{};
        if (live && in_row(i)) to[i] = *reinterpret_cast<const Pack<T, VEC> *>(from + i * STRIDE);
    }
}

// Sums each of N values over every team; all threads of a team get its sums. Every thread of the block must
// take part.
template <int N> __device__ __forceinline__ void team_sums(float (&x)[N]) {
#pragma unroll
    for (int n = 0; n < N; n++) x[n] = warp_reduce<(TEAM < WARP ? TEAM : WARP)>(x[n], Add());
    if constexpr (TEAM > WARP) {
        __shared__ float sums[N][THREADS / WARP];
        __syncthreads();
        if (threadIdx.x % WARP == 0) {
#pragma unroll
            for (int n = 0; n < N; n++) sums[n][threadIdx.x / WARP] = x[n];
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < N; n++) {
            x[n] = 0.0f;
            for (int warp = 0; warp < TEAM / WARP; warp++) x[n] += sums[n][team() * (TEAM / WARP) + warp];
        }
    }
}

// Loads a pack of the weight with its offset; ones without WEIGHT.
__device__ __forceinline__ void load_weight(const float *from, float (&to)[VEC]) {
    if constexpr (WEIGHT) {
        load(from, to);
        if constexpr (WEIGHT_OFFSET != 0.0f) {
#pragma unroll
            for (int c = 0; c < VEC; c++) to[c] += WEIGHT_OFFSET;
        }
    } else {
#pragma unroll
        for (int c = 0; c < VEC; c++) to[c] = 1.0f;
    }
}

// Adds the squares of a pack to a sum.
__device__ __forceinline__ float add_squares(const float (&x)[VEC], float sum) {
#pragma unroll
    for (int c = 0; c < VEC; c++) sum = fmaf(x[c], x[c], sum);
    return sum;
}

// Returns 1 / √(mean + eps); `inv_n` is the reciprocal of the number of elements in the mean.
__device__ __forceinline__ float inverse_root(float squares, float inv_n, float eps) {
    return rsqrtf(fmaf(squares, inv_n, eps));
}

// Replaces x by its norm; `scale` is the inverse root of its row.
__device__ __forceinline__ void normalize(float (&x)[VEC], float scale, const float (&weight)[VEC]) {
#pragma unroll
    for (int c = 0; c < VEC; c++) x[c] = x[c] * scale * weight[c];
}

// Stores n = row / √(mean(row²) + eps) ⊙ w for the teams whose row is live. `w` and `n` point to the thread's
// first pack.
__device__ __forceinline__ void store_normed(const Pack<T, VEC> (&row)[PACKS_PER_THREAD],
                                             const float *__restrict__ w, T *n, bool live, float inv_n,
                                             float eps) {
    float squares[1] = {0.0f};
#pragma unroll
    for (int i = 0; i < PACKS_PER_THREAD; i++) {
        float x[VEC];
        unpack(row[i], x);
        squares[0] = add_squares(x, squares[0]);
    }
    team_sums(squares);
    float scale = inverse_root(squares[0], inv_n, eps);
#pragma unroll
    for (int i = 0; i < PACKS_PER_THREAD; i++) {
        if (!live || !in_row(i)) continue;
        float x[VEC], weight[VEC];
        unpack(row[i], x);
        load_weight(w + i * STRIDE, weight);
        normalize(x, scale, weight);
        store(n + i * STRIDE, x);
    }
}

// Computes sum = r = x + y, rounded as stored, for the teams whose row is live. Pointers point to the
// thread's first pack.
__device__ __forceinline__ void add_rows(const T *x, const T *y, T *r, bool live,
                                         Pack<T, VEC> (&sum)[PACKS_PER_THREAD]) {
    Pack<T, VEC> addend[PACKS_PER_THREAD];
    load_row(x, live, sum);
    load_row(y, live, addend);
#pragma unroll
    for (int i = 0; i < PACKS_PER_THREAD; i++) {
        float a[VEC], b[VEC];
        unpack(sum[i], a);
        unpack(addend[i], b);
#pragma unroll
        for (int c = 0; c < VEC; c++) a[c] += b[c];
        fill(sum[i], a);
        if (live && in_row(i)) *reinterpret_cast<Pack<T, VEC> *>(r + i * STRIDE) = sum[i];
    }
}

// Sums every column over the teams of the block into to[WIDTH].
__device__ __forceinline__ void store_columns(const float (&part)[PACKS_PER_THREAD][VEC], float *to) {
    if constexpr (TEAMS == 1) {
#pragma unroll
        for (int i = 0; i < PACKS_PER_THREAD; i++) {
            if (in_row(i)) store(to + column() + i * STRIDE, part[i]);
        }
    } else {
        __shared__ __align__(16) float sums[TEAMS][WIDTH];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PACKS_PER_THREAD; i++) {
            if (in_row(i)) store(&sums[team()][column() + i * STRIDE], part[i]);
        }
        __syncthreads();
        for (int c = threadIdx.x; c < WIDTH; c += THREADS) {
            float sum = 0.0f;
#pragma unroll
            for (int t = 0; t < TEAMS; t++) sum += sums[t][c];
            to[c] = sum;
        }
    }
}
