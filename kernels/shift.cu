// Rows of earlier tokens of the same document, and the cache of generation for them.
//
// Definitions: T, WIDTH (elements of a row) and VEC (elements that a thread moves at once, a divisor of
// WIDTH).
#include "common.cuh"

// Copies a pack of row `source` of x to y + at, or zeros.
__device__ __forceinline__ void copy_or_zero(const T *x, bool exists, i64 source, T *y, u32 at) {
    float value[VEC] = {};
    if (exists) load(x + source * WIDTH + at % WIDTH, value);
    store(y + at, value);
}

// y[rows, WIDTH] = x[row − by], zeros where positions[row] < by; n elements.
extern "C" __global__ void shift(const T *__restrict__ x, T *__restrict__ y, int n,
                                 const u32 *positions, int by, int rows) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    int row = at / WIDTH;
    copy_or_zero(x, row >= by && positions[row] >= by, row - by, y, at);
}

// dx[rows, WIDTH] = dy[row + by], zeros where that row has no such position; n elements.
extern "C" __global__ void shift_grad(const T *__restrict__ dy, T *__restrict__ dx, int n,
                                      const u32 *positions, int by, int rows) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    int row = at / WIDTH;
    copy_or_zero(dy, row + by < rows && positions[row + by] >= by, row + by, dx, at);
}

// y[samples, WIDTH] = the row that was kept `by` tokens ago, zeros where positions[sample] < by; x is kept in
// its place in cache[samples, by, WIDTH]. n elements.
extern "C" __global__ void cached_shift(const T *__restrict__ x, T *__restrict__ y, int n,
                                        const u32 *positions, T *cache, int by) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    int sample = at / WIDTH;
    u32 position = positions[sample];
    T *kept = cache + (i64(sample) * by + position % by) * WIDTH + at % WIDTH;
    float value[VEC] = {}, next[VEC];
    if (position >= by) load(kept, value);
    load(x + at, next);
    store(y + at, value);
    store(kept, next);
}

// cache[sample, row % by] = the rows of x[prompts, rows, WIDTH] up to the last token of each sample's prompt,
// which has the position positions[sample]. A block handles one row of one sample.
extern "C" __global__ void shift_fill(const T *__restrict__ x, const u32 *positions, T *__restrict__ cache,
                                      int rows, int by, int samples_per_prompt) {
    int sample = blockIdx.y, row = int(positions[sample]) - int(blockIdx.x);
    if (row < 0 || row >= rows) return;
    const T *from = x + (i64(sample / samples_per_prompt) * rows + row) * WIDTH;
    T *to = cache + (i64(sample) * by + row % by) * WIDTH;
    for (int column = threadIdx.x * VEC; column < WIDTH; column += blockDim.x * VEC) {
        float value[VEC];
        load(from + column, value);
        store(to + column, value);
    }
}
