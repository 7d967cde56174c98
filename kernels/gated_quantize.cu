// The gated activation and its gradient, rounded to 8-bit floats as quantize.cu rounds what gated.cu writes,
// with the same bits: values are rounded to T in between.
//
// Definitions: those of gated.cuh; FORMAT, ROWS, TRANSPOSED, OBSERVES of the output, or of the gradient; and
// for the gradient EMITTED, the format of the output, and EMITS, whether its transpose is written too.
#include "fp8.cuh"
#include "gated.cuh"

constexpr int THREADS = 256, TILE_ROWS = 64, TILE_COLUMNS = 128;
constexpr int VEC = 8;                     // Neighbors in a row that a thread loads at once.
constexpr int PACKS = TILE_COLUMNS / VEC;  // Threads across a tile.
static_assert(THREADS / PACKS * 4 == TILE_ROWS, "a thread has four rows");
static_assert(WIDTH % 16 == 0, "GPUs multiply matrices of whole groups of 16");

typedef TransposedTile<TILE_ROWS, TILE_COLUMNS> Tile;

// The four rows of eight columns that a thread rounds.
struct ThreadRows {
    int first_row, first_column, word, row, column;
    bool live;
    // From the last row, which has just been written and is still in the cache.
    __device__ __forceinline__ explicit ThreadRows(int rows)
        : first_row((gridDim.y - 1 - blockIdx.y) * TILE_ROWS), first_column(blockIdx.x * TILE_COLUMNS),
          word(threadIdx.x / PACKS), row(first_row + 4 * word),
          column(first_column + threadIdx.x % PACKS * VEC), live(row < rows && column < WIDTH) {}
};

// Rounds eight numbers to T and then to 8-bit floats.
template <typename F>
__device__ __forceinline__ uint2 round_twice(float (&n)[VEC], float scale, Seen &seen) {
#pragma unroll
    for (int i = 0; i < VEC; i++) n[i] = up(down<T>(n[i]));
    return make_uint2(quantized<F>(n[0], n[1], n[2], n[3], scale, seen),
                      quantized<F>(n[4], n[5], n[6], n[7], scale, seen));
}

// Puts four rows of eight bytes into a tile.
__device__ __forceinline__ void put(Tile &tile, const ThreadRows &at, const uint2 (&bytes)[4]) {
    u32 low[4] = {bytes[0].x, bytes[1].x, bytes[2].x, bytes[3].x};
    u32 high[4] = {bytes[0].y, bytes[1].y, bytes[2].y, bytes[3].y};
    transpose(low);
    transpose(high);
    tile.put(at.column - at.first_column, at.word, low);
    tile.put(at.column - at.first_column + 4, at.word, high);
}

typedef Pack<T, VEC> Numbers;
__device__ __forceinline__ Numbers fetch(const T *at) { return *reinterpret_cast<const Numbers *>(at); }

// gate_up: [rows, 2, WIDTH]; by_rows: [rows, WIDTH]; transposed: [WIDTH, rows].
extern "C" __global__ void __launch_bounds__(THREADS)
    gated_quantize(const T *__restrict__ gate_up, u8 *by_rows, u8 *transposed, const float *scales,
                   u32 *maximum, double *counts, int rows) {
    __shared__ Tile tile;
    ThreadRows at(rows);
    Seen seen;
    if (at.live) {
        float scale = scales[0];
        Numbers gates[4], ups[4];
        const T *from = gate_up + i64(at.row) * 2 * WIDTH + at.column;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            gates[r] = fetch(from + r * 2 * WIDTH), ups[r] = fetch(from + (2 * r + 1) * WIDTH);
        }
        uint2 bytes[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float gate[VEC], n[VEC];
            unpack(gates[r], gate);
            unpack(ups[r], n);
#pragma unroll
            for (int i = 0; i < VEC; i++) n[i] = output(gate[i], n[i]);
            bytes[r] = round_twice<FORMAT>(n, scale, seen);
            if (ROWS) *reinterpret_cast<uint2 *>(by_rows + i64(at.row + r) * WIDTH + at.column) = bytes[r];
        }
        if (TRANSPOSED) put(tile, at, bytes);
    }
    if (OBSERVES) add_seen(seen, maximum, counts);
    __syncthreads();
    if (TRANSPOSED) tile.write<THREADS>(transposed, at.first_row, at.first_column, rows, WIDTH);
}

#ifdef EMITTED
// gate_up: [rows, 2, WIDTH]; dy: [rows, WIDTH]; by_rows: [rows, 2·WIDTH]; transposed: [2·WIDTH, rows]; y, the
// transpose of the output with its own scales: [WIDTH, rows].
extern "C" __global__ void __launch_bounds__(THREADS)
    gated_grad_quantize(const T *__restrict__ gate_up, const T *__restrict__ dy, u8 *by_rows, u8 *transposed,
                        const float *scales, u32 *maximum, double *counts, u8 *y, const float *y_scales,
                        int rows) {
    __shared__ Tile d_gate_tile, d_up_tile, y_tile;
    ThreadRows at(rows);
    Seen seen, unseen;
    if (at.live) {
        float scale = scales[0], y_scale = EMITS ? y_scales[0] : 0.0f;
        Numbers gates[4], ups[4], upstreams[4];
        const T *from = gate_up + i64(at.row) * 2 * WIDTH + at.column;
        const T *above = dy + i64(at.row) * WIDTH + at.column;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            gates[r] = fetch(from + r * 2 * WIDTH), ups[r] = fetch(from + (2 * r + 1) * WIDTH);
            upstreams[r] = fetch(above + r * WIDTH);
        }
        uint2 d_gates[4], d_ups[4], values[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float gate[VEC], up[VEC], value[VEC];
            unpack(gates[r], gate);
            unpack(ups[r], up);
            unpack(upstreams[r], value);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                Gradients point = gradients(gate[i], up[i], value[i]);
                gate[i] = point.gate, up[i] = point.up, value[i] = point.value;
            }
            d_gates[r] = round_twice<FORMAT>(gate, scale, seen);
            d_ups[r] = round_twice<FORMAT>(up, scale, seen);
            if (ROWS) {
                u8 *to = by_rows + i64(at.row + r) * 2 * WIDTH + at.column;
                *reinterpret_cast<uint2 *>(to) = d_gates[r];
                *reinterpret_cast<uint2 *>(to + WIDTH) = d_ups[r];
            }
            if (EMITS) values[r] = round_twice<EMITTED>(value, y_scale, unseen);
        }
        if (TRANSPOSED) put(d_gate_tile, at, d_gates), put(d_up_tile, at, d_ups);
        if (EMITS) put(y_tile, at, values);
    }
    if (OBSERVES) add_seen(seen, maximum, counts);
    __syncthreads();
    if (TRANSPOSED) {
        d_gate_tile.write<THREADS>(transposed, at.first_row, at.first_column, rows, WIDTH);
        d_up_tile.write<THREADS>(transposed + i64(WIDTH) * rows, at.first_row, at.first_column, rows, WIDTH);
    }
    if (EMITS) y_tile.write<THREADS>(y, at.first_row, at.first_column, rows, WIDTH);
}
#endif
