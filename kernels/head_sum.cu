// Sums over the elements of heads. Definitions: T and WIDTH (elements of a head). A warp sums a head.
#include "common.cuh"

// y[heads] = factor · Σ x[heads, WIDTH].
extern "C" __global__ void head_sum(const T *__restrict__ x, T *__restrict__ y, int heads, float factor) {
    int head = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (head >= heads) return;
    float sum = 0.0f;
    for (int column = lane; column < WIDTH; column += WARP) sum += up(x[i64(head) * WIDTH + column]);
    sum = warp_sum(sum);
    if (lane == 0) y[head] = down<T>(factor * sum);
}
