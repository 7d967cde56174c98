// Puts parts of rows side by side, head by head, and computes the gradient.
//
// Definitions: T; HEADS and WIDTH (elements of a head) of a row of the output; VEC (elements that a thread
// moves at once, a divisor of all numbers of a piece); COUNT pieces and PIECES, the fields of Piece for each.
#include "common.cuh"

// The elements `start` to `start + width` of every head: those of a row of the tensor `input`, of `row`
// elements, from `from` on, and for the next head `stride` later. Zeros if `input` is negative.
struct Piece {
    int input, start, from, stride, width, row;
};

// The addresses of tensors.
struct Tensors {
    const T *at[8];
};

// y: [rows, HEADS, WIDTH], n elements.
extern "C" __global__ void arrange(Tensors in, T *__restrict__ y, int n) {
    constexpr Piece pieces[] = {PIECES};
    u32 at = (block_from_last() * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    int row = at / (HEADS * WIDTH), head = at / WIDTH % HEADS, column = at % WIDTH;
    float x[VEC] = {};
#pragma unroll
    for (int p = 0; p < COUNT; p++) {
        const Piece &piece = pieces[p];
        int own = column - piece.start;
        if (piece.input < 0 || own < 0 || own >= piece.width) continue;
        load(in.at[piece.input] + i64(row) * piece.row + piece.from + head * piece.stride + own, x);
    }
    store(y + at, x);
}

// dx: the gradient of the tensor `input`, whose rows have `row` elements, plus `before`, which is null or
// like dx and may be the same memory; dy: [rows, HEADS, WIDTH]. Only `width` elements of a row, from `from`
// on, are computed, n of all rows; the op reads no others if this is in place.
extern "C" __global__ void arrange_grad(const T *__restrict__ dy, const T *before, T *dx, int n, int row,
                                        int from, int width, int input) {
    constexpr Piece pieces[] = {PIECES};
    u32 index = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (index >= n) return;
    u32 r = index / width, column = from + index % width, at = r * row + column;
    const T *of_row = dy + i64(r) * HEADS * WIDTH;
    float sum[VEC] = {};
    bool read = false;
#pragma unroll
    for (int p = 0; p < COUNT; p++) {
        const Piece &piece = pieces[p];
        int own = int(column) - piece.from;
        if (piece.input != input || own < 0) continue;
        // Only one head reads an element, or all do.
        int first = 0, last = HEADS;
        if (piece.stride > 0) {
            first = own / piece.stride, last = first + 1;
            own -= first * piece.stride;
        }
        if (own >= piece.width || last > HEADS) continue;
        read = true;
        for (int head = first; head < last; head++) {
            float d[VEC];
            load(of_row + head * WIDTH + piece.start + own, d);
#pragma unroll
            for (int c = 0; c < VEC; c++) sum[c] += d[c];
        }
    }
    // In place, elements between pieces stay as they are.
    if (before == dx && !read) return;
    if (before) {
        float d[VEC];
        load(before + at, d);
#pragma unroll
        for (int c = 0; c < VEC; c++) sum[c] += d[c];
    }
    store(dx + at, sum);
}
