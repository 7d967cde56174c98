// Rotary position embedding of packed rows: query and key heads are rotated by the angles of their positions.
#include "heads.cuh"

// x, y: packed rows [rows, ROW]; positions: [rows]. y may lie over x; where it does not, `copies` says that
// values have to be copied. `direction` is 1, or −1 to rotate back. A block handles `run` rows.
extern "C" __global__ void __launch_bounds__(THREADS, HELD * VEC <= 8 ? 4 : 1)
    rope(const T *x, const u32 *positions, T *y, int rows, int run, float direction, u32 copies) {
    __shared__ __align__(16) float angles[TILE][DIM];
    HeadSlots slots;
    int first = blockIdx.x * run, end = min(first + run, rows);
    if (copies) copy_values(x + i64(first) * ROW, y + i64(first) * ROW, end - first);
    for (int tile = first; tile < end; tile += TILE) {
        int tile_rows = min(TILE, end - tile), heads = tile_rows * slots.heads();
        const T *from = x + i64(tile) * ROW;
        T *to = y + i64(tile) * ROW;
        HeadPart next;
        load_head_part(from + slots.at(slots.first), slots.first < heads, next);
        if (tile > first) __syncthreads();
        fill_angles(positions + tile, tile_rows, angles);
        __syncthreads();
#pragma unroll 1
        for (int head = slots.first; head < heads; head += slots.step) {
            HeadPart part = next;
            load_head_part(from + slots.at(head + slots.step), head + slots.step < heads, next);
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                if (!in_half(i)) continue;
                float low[VEC], high[VEC], cosine[VEC], sine[VEC];
                unpack(part.low[i], low);
                unpack(part.high[i], high);
                const float *angle = angles[slots.row(head)] + HeadSlots::column() + i * LANES * VEC;
                load(angle, cosine);
                load(angle + HALF, sine);
#pragma unroll
                for (int c = 0; c < VEC; c++) {
                    float a = low[c], b = high[c], s = sine[c] * direction;
                    low[c] = a * cosine[c] - b * s;
                    high[c] = b * cosine[c] + a * s;
                }
                T *out = to + slots.at(head) + i * LANES * VEC;
                store(out, low);
                store(out + HALF, high);
            }
        }
    }
}
