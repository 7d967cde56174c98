// Sets a few words to one value.
//
// Definitions: THREADS (of the only block).
#include "common.cuh"

// to[words] ← value.
extern "C" __global__ void __launch_bounds__(THREADS) fill_words(u32 *to, u32 value, int words) {
    for (int i = threadIdx.x; i < words; i += THREADS) to[i] = value;
}
