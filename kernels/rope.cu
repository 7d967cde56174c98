// Rotary position embedding of packed rows: query and key heads turned by the angles of their positions.
#include "heads.cuh"

// x, y: packed rows [rows, ROW]; positions: [rows]. y may lie over x; where it does not, `copies` says that values have
// to be copied. `direction` is 1, or −1 to turn back. A block handles `run` rows.
extern "C" __global__ void __launch_bounds__(THREADS, HELD * VEC <= 8 ? 4 : 1)
    rope(const T *x, const u32 *positions, T *y, int rows, int run, float direction, u32 copies) {
    __shared__ __align__(16) float angles[TILE][DIM];
    Turn turn;
    int first = blockIdx.x * run, end = min(first + run, rows);
    if (copies) copy_values(x + i64(first) * ROW, y + i64(first) * ROW, end - first);
    for (int tile = first; tile < end; tile += TILE) {
        int tile_rows = min(TILE, end - tile), heads = tile_rows * turn.heads();
        const T *from = x + i64(tile) * ROW;
        T *to = y + i64(tile) * ROW;
        Part next;
        load_part(from + turn.at(turn.first), turn.first < heads, next);
        if (tile > first) __syncthreads();
        fill_angles(positions + tile, tile_rows, angles);
        __syncthreads();
#pragma unroll 1
        for (int head = turn.first; head < heads; head += turn.step) {
            Part part = next;
            load_part(from + turn.at(head + turn.step), head + turn.step < heads, next);
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                if (!in_half(i)) continue;
                float low[VEC], high[VEC], cosine[VEC], sine[VEC];
                unpack(part.low[i], low);
                unpack(part.high[i], high);
                const float *angle = angles[turn.row(head)] + Turn::column() + i * LANES * VEC;
                load(angle, cosine);
                load(angle + HALF, sine);
#pragma unroll
                for (int c = 0; c < VEC; c++) {
                    float a = low[c], b = high[c], s = sine[c] * direction;
                    low[c] = a * cosine[c] - b * s;
                    high[c] = b * cosine[c] + a * s;
                }
                T *out = to + turn.at(head) + i * LANES * VEC;
                store(out, low);
                store(out + HALF, high);
            }
        }
    }
}
