// Makes several copies of a few KiB, one per block, also into the memory of other GPUs.
//
// Definitions: THREADS (per block).
#include "common.cuh"

// Eight addresses or numbers.
struct Numbers {
    u64 at[8];
};

// to[k][words[k]] ← from[k], for block k.
extern "C" __global__ void __launch_bounds__(THREADS)
copy_small(const __grid_constant__ Numbers to, const __grid_constant__ Numbers from,
           const __grid_constant__ Numbers words) {
    u32 *target = reinterpret_cast<u32 *>(to.at[blockIdx.x]);
    const u32 *source = reinterpret_cast<const u32 *>(from.at[blockIdx.x]);
    for (int i = threadIdx.x, count = int(words.at[blockIdx.x]); i < count; i += THREADS) target[i] = source[i];
}
