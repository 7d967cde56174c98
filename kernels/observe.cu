// The largest magnitude of a tensor, as in src/engine/ops/observe.rs. VEC: neighbors that a thread loads at
// once.
#include "common.cuh"

// Raises *maximum, the bits of a float, to the largest of the magnitudes of n numbers. Bits order like the
// magnitudes, with NaN above infinity.
extern "C" __global__ void observe(const T *__restrict__ x, u32 *maximum, u64 n) {
    u32 most = 0;
    u64 first = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * VEC;
    u64 stride = u64(gridDim.x) * blockDim.x * VEC;
    for (u64 at = first; at < n; at += stride) {
        float numbers[VEC] = {};
        if (at + VEC <= n) {
            load(x + at, numbers);
        } else {
            for (int i = 0; at + i < n; i++) numbers[i] = up(x[at + i]);
        }
#pragma unroll
        for (int i = 0; i < VEC; i++) most = max(most, __float_as_uint(numbers[i]) & 0x7fffffffu);
    }
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) most = max(most, __shfl_xor_sync(FULL_WARP, most, step));
    if (threadIdx.x % WARP == 0) atomicMax(maximum, most);
}
