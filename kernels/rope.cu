// Rotary position embedding: rotates query and key heads by the angles of their positions.
#include "heads.cuh"

// y[rows, QKV_WIDTH] = x[rows, QKV_WIDTH] with heads rotated by positions[rows]. `direction` is 1, or −1 for
// the gradient, which rotates by the negative angles. y may be x itself; if not, `copies_v` is 1, and the
// value heads are copied. A block handles `rows_per_block` rows.
extern "C" __global__ void __launch_bounds__(THREADS, PACKS_PER_THREAD * VEC <= 8 ? 4 : 1)
    rope(const T *x, const u32 *positions, T *y, int rows, int rows_per_block, float direction,
         u32 copies_v) {
    __shared__ __align__(16) float cos_sin[TILE_ROWS][HEAD_DIM];
    ThreadHeads own;
    int first = blockIdx.x * rows_per_block, end = min(first + rows_per_block, rows);
    if (copies_v)
        copy_v(x + V_OFFSET + i64(first) * QKV_WIDTH, QKV_WIDTH, y + V_OFFSET + i64(first) * QKV_WIDTH,
               QKV_WIDTH, end - first);
    for (int tile = first; tile < end; tile += TILE_ROWS) {
        int tile_rows = min(TILE_ROWS, end - tile), heads = tile_rows * own.per_row();
        const T *from = x + i64(tile) * QKV_WIDTH;
        T *to = y + i64(tile) * QKV_WIDTH;
        HeadPacks next;
        load_head_packs(from + own.at(own.first), own.first < heads, next);
        if (tile > first) __syncthreads();
        fill_cos_sin(positions + tile, tile_rows, cos_sin);
        __syncthreads();
#pragma unroll 1
        for (int head = own.first; head < heads; head += own.step) {
            HeadPacks part = next;
            load_head_packs(from + own.at(head + own.step), head + own.step < heads, next);
#pragma unroll
            for (int i = 0; i < PACKS_PER_THREAD; i++) {
                if (!pack_in_half(i)) continue;
                float low[VEC], high[VEC], cosine[VEC], sine[VEC];
                unpack(part.low[i], low);
                unpack(part.high[i], high);
                const float *row = cos_sin[own.row(head)] + ThreadHeads::column() + i * LANES * VEC;
                load(row, cosine);
                load(row + HALF_DIM, sine);
#pragma unroll
                for (int c = 0; c < VEC; c++) {
                    float a = low[c], b = high[c], s = sine[c] * direction;
                    low[c] = a * cosine[c] - b * s;
                    high[c] = b * cosine[c] + a * s;
                }
                T *out = to + own.at(head);
                store(out + own.low(i), low);
                store(out + own.high(i), high);
            }
        }
    }
}
