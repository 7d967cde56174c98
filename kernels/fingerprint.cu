// 128 bits that stand for the bits of a tensor; see src/ops/fingerprint.rs.
#include "common.cuh"

constexpr int THREADS = 256;
constexpr int BATCH = 4; // Loads in flight per thread, as in src/ops/fingerprint.rs.

constexpr u64 STEP = 0x9e3779b97f4a7c15ull, SHARED = 0xbf58476d1ce4e5b9ull;
constexpr u64 OWN_A = 0x94d049bb133111ebull, OWN_B = 0xc4ceb9fe1a85ec53ull;

struct Sums {
    u64 a, b;
};

__device__ __forceinline__ u64 folded(u64 z) { return z ^ z >> 32; }

// Adds the mixtures of the word whose place has this key, place · STEP.
__device__ __forceinline__ void mix(Sums &sums, u64 word, u64 key) {
    u64 z = folded(word ^ key) * SHARED;
    z ^= z >> 29;
    sums.a += folded(z * OWN_A);
    sums.b += folded(z * OWN_B);
}

__device__ __forceinline__ u64 joined(u32 low, u32 high) { return u64(high) << 32 | low; }

__device__ __forceinline__ u64 warp_total(u64 x) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(FULL_WARP, x, step);
    return x;
}

// totals[2] += the sums over the words of x[bytes], the last of which is filled up with zeros. Integers: any order of
// addition gives the same.
extern "C" __global__ void __launch_bounds__(THREADS) fingerprint(const u8 *x, u64 *totals, u64 bytes) {
    __shared__ Sums warps[THREADS / WARP];
    Sums sums = {0, 0};
    u64 packs = bytes / 16, stride = u64(gridDim.x) * THREADS * BATCH;
    const uint4 *from = reinterpret_cast<const uint4 *>(x);
    for (u64 first = u64(blockIdx.x) * THREADS * BATCH + threadIdx.x; first < packs; first += stride) {
        uint4 pack[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            u64 at = first + i * THREADS;
            if (at < packs) pack[i] = from[at];
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            u64 at = first + i * THREADS, key = 2 * at * STEP;
            if (at >= packs) continue;
            mix(sums, joined(pack[i].x, pack[i].y), key);
            mix(sums, joined(pack[i].z, pack[i].w), key + STEP);
        }
    }
    // At most two words are left, the last of them perhaps in part.
    u64 place = 2 * packs + threadIdx.x;
    if (blockIdx.x == 0 && place * 8 < bytes) {
        u64 word = 0;
        for (u64 at = place * 8; at < bytes && at < place * 8 + 8; at++) word |= u64(x[at]) << (at % 8 * 8);
        mix(sums, word, place * STEP);
    }
    sums.a = warp_total(sums.a), sums.b = warp_total(sums.b);
    if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = sums;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int w = 1; w < THREADS / WARP; w++) sums.a += warps[w].a, sums.b += warps[w].b;
    atomicAdd(totals, sums.a);
    atomicAdd(totals + 1, sums.b);
}
