// A 128-bit hash of the bits of a tensor, defined in src/engine/ops/fingerprint.rs.
//
// Definitions: THREADS (per block), BATCH (16-byte loads in flight per thread).
#include "common.cuh"

constexpr u64 STEP = 0x9e3779b97f4a7c15ull, SHARED = 0xbf58476d1ce4e5b9ull;
constexpr u64 OWN_A = 0x94d049bb133111ebull, OWN_B = 0xc4ceb9fe1a85ec53ull;

struct Sums {
    u64 a, b;
};

__device__ __forceinline__ u64 fold(u64 z) { return z ^ z >> 32; }

// Adds the two hashes of a word. Its key is its index times STEP.
__device__ __forceinline__ void mix(Sums &sums, u64 word, u64 key) {
    u64 z = fold(word ^ key) * SHARED;
    z ^= z >> 29;
    sums.a += fold(z * OWN_A);
    sums.b += fold(z * OWN_B);
}

__device__ __forceinline__ u64 join_halves(u32 low, u32 high) { return u64(high) << 32 | low; }

__device__ __forceinline__ u64 warp_total(u64 x) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(FULL_WARP, x, step);
    return x;
}

// totals[2] += the sums over the words of x[bytes]; the last word is padded with zeros. Integer sums do not
// depend on the order of addition.
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
            mix(sums, join_halves(pack[i].x, pack[i].y), key);
            mix(sums, join_halves(pack[i].z, pack[i].w), key + STEP);
        }
    }
    // At most two words are left; the last one may be incomplete.
    u64 index = 2 * packs + threadIdx.x;
    if (blockIdx.x == 0 && index * 8 < bytes) {
        u64 word = 0;
        for (u64 at = index * 8; at < bytes && at < index * 8 + 8; at++) word |= u64(x[at]) << (at % 8 * 8);
        mix(sums, word, index * STEP);
    }
    sums.a = warp_total(sums.a), sums.b = warp_total(sums.b);
    if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = sums;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int w = 1; w < THREADS / WARP; w++) sums.a += warps[w].a, sums.b += warps[w].b;
    atomicAdd(totals, sums.a);
    atomicAdd(totals + 1, sums.b);
}
