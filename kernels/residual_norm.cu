// Residual addition and the RMS norm of the sum: r = x + y, n = r / √(mean(r²) + eps) ⊙ w.
//
// The norm reads r rounded to T, as it is stored. So the backward, which reads r from memory, can recompute n
// with the same bits.
#include "norm.cuh"

// x, y, r, n: [rows, WIDTH]; w: [WIDTH], null without WEIGHT. inv_n: 1 / (elements of a row). r and n may
// reuse the memory of x and y.
extern "C" __global__ void __launch_bounds__(THREADS)
    residual_norm(const T *x, const T *y, const float *__restrict__ w, T *r, T *n, int rows, float inv_n,
                  float eps) {
    let_next_begin();
    int row = blockIdx.x * TEAMS + team();
    bool live = row < rows;
    i64 start = i64(row) * WIDTH + column();
    Pack<T, VEC> sum[PACKS_PER_THREAD];
    add_rows(x + start, y + start, r + start, live, sum);
    store_normed(sum, w + column(), n + start, live, inv_n, eps);
}
