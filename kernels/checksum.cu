// A checksum of memory, which compares two results bit for bit without moving them.
#include "common.cuh"

// sum[0] += Σ mix(word, index). Integer additions give the same sum in any order.
extern "C" __global__ void checksum(const u32 *words /* (n) */, u64 *sum /* (1), zeroed */, u64 n) {
    u64 mine = 0;
    for (u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x; i < n; i += u64(gridDim.x) * blockDim.x) {
        // The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
        u64 z = (i << 32 | words[i]) + 0x9E3779B97F4A7C15ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        mine += z ^ (z >> 31);
    }
    for (int step = WARP / 2; step > 0; step /= 2) mine += __shfl_xor_sync(FULL_WARP, mine, step);
    if (threadIdx.x % WARP == 0) atomicAdd(sum, mine);
}
