// Rounds a matrix to 8-bit floats with one scale, as its rows and as the rows of its transpose.
//
// Definitions: T (format of the matrix), FORMAT (e4m3 or e5m2), ROWS, TRANSPOSED (what is written), OBSERVES
// (adds to the site's maximum and counts).
#include "fp8.cuh"

constexpr int THREADS = 256, TILE = 128;
constexpr int INVERSE = 4;             // Place of the inverse of a scale in its row.
constexpr int VEC = 8;                 // Neighbors in a row that a thread loads at once.
constexpr int PACKS = TILE / VEC;      // Threads across a tile.
constexpr int DOWN = THREADS / PACKS;  // Threads down a tile, each with 4 rows.
constexpr int ROUNDS = TILE / DOWN / 4;

// The smallest maximum that a scale is made for.
constexpr double SMALLEST = 1e-12;

// Rounds rows × columns numbers, both multiples of 16, times *scale. Adds to the maximum of the magnitudes
// and to the counts.
__device__ __forceinline__ void quantize_tile(const T *x, u8 *by_rows, u8 *transposed, float scale,
                                              u32 *maximum, double *counts, int rows, int columns) {
    __shared__ TransposedTile<TRANSPOSED ? TILE : 16, TRANSPOSED ? TILE : 1> tile;
    // From the last row, which has just been written and is still in the cache.
    int first_row = (gridDim.y - 1 - blockIdx.y) * TILE, first_column = blockIdx.x * TILE;
    int column = threadIdx.x % PACKS * VEC, down = threadIdx.x / PACKS;
    Seen seen;
    if (first_column + column < columns) {
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) {
            int word = round * DOWN + down, row = first_row + 4 * word;
            if (row >= rows) continue;
            i64 at = i64(row) * columns + first_column + column;
            Pack<T, 8> packs[4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                packs[r] = *reinterpret_cast<const Pack<T, 8> *>(x + at + i64(r) * columns);
            }
            u32 halves[2][4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                float n[8];
                unpack(packs[r], n);
                halves[0][r] = quantized<FORMAT>(n[0], n[1], n[2], n[3], scale, seen);
                halves[1][r] = quantized<FORMAT>(n[4], n[5], n[6], n[7], scale, seen);
                if (ROWS) {
                    uint2 bytes = make_uint2(halves[0][r], halves[1][r]);
                    *reinterpret_cast<uint2 *>(by_rows + at + i64(r) * columns) = bytes;
                }
            }
            if constexpr (TRANSPOSED) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    transpose(halves[half]);
                    tile.put(column + 4 * half, word, halves[half]);
                }
            }
        }
    }
    if (OBSERVES) add_seen(seen, maximum, counts);
    __syncthreads();
    if (TRANSPOSED) tile.template write<THREADS>(transposed, first_row, first_column, rows, columns);
}

// With the scale of the site, from earlier maxima: the first number of `scales`, which has its inverse at
// INVERSE.
extern "C" __global__ void __launch_bounds__(THREADS)
    quantize(const T *x, u8 *by_rows, u8 *transposed, const float *scales, u32 *maximum, double *counts,
             int rows, int columns) {
    quantize_tile(x, by_rows, transposed, scales[0], maximum, counts, rows, columns);
}

// With the scale that puts the largest magnitude of this matrix, given as the bits of a float, at the largest
// number of the format. Writes the scale and its inverse.
extern "C" __global__ void __launch_bounds__(THREADS)
    quantize_current(const T *x, u8 *by_rows, u8 *transposed, float *scales, const u32 *largest, u32 *maximum,
                     double *counts, int rows, int columns) {
    __shared__ float scale;
    if (threadIdx.x == 0) {
        float size = __uint_as_float(*largest);
        scale = float(double(FORMAT::LARGEST) / (size < SMALLEST ? SMALLEST : double(size)));
        if (blockIdx.x == 0 && blockIdx.y == 0) {
            for (int i = 0; i < 2 * INVERSE; i++) scales[i] = 0.0f;
            scales[0] = scale;
            scales[INVERSE] = float(1.0 / double(scale));
        }
    }
    __syncthreads();
    quantize_tile(x, by_rows, transposed, scale, maximum, counts, rows, columns);
}
