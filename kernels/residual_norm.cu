// Residual addition and the norm of the sum: r = x + y as stored, n = r / √(mean(r²) + eps) ⊙ w.
#include "norm.cuh"

// x, y, r, n: [rows, WIDTH]; w: [WIDTH]. r and n may lie over x and y.
extern "C" __global__ void __launch_bounds__(THREADS)
    residual_norm(const T *x, const T *y, const float *__restrict__ w, T *r, T *n, int rows, float inv_n,
                  float eps) {
    let_next_begin();
    int row = blockIdx.x * TEAMS + team();
    bool live = row < rows;
    i64 start = i64(row) * WIDTH + column();
    Pack<T, VEC> sum[PACKS_PER_THREAD], addend[PACKS_PER_THREAD];
    load_row(x + start, live, sum);
    load_row(y + start, live, addend);
#pragma unroll
    for (int i = 0; i < PACKS_PER_THREAD; i++) {
        float a[VEC], b[VEC];
        unpack(sum[i], a);
        unpack(addend[i], b);
#pragma unroll
        for (int c = 0; c < VEC; c++) a[c] += b[c];
        fill(sum[i], a);
        if (live && in_row(i)) *reinterpret_cast<Pack<T, VEC> *>(r + start + i * STRIDE) = sum[i];
    }
    store_normed(sum, w + column(), n + start, live, inv_n, eps);
}
