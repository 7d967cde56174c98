// A kernel that only occupies multiprocessors, to measure what others lose without them.
#include "common.cuh"

// Seconds after which a block ends by itself, should its host be gone.
constexpr u64 LIMIT_NS = 20'000'000'000ull;

// Adds 1 to started[0] in each block, and waits until release[0] is set. Both are in host memory. The dynamic shared
// memory of a launch leaves no room for blocks of kernels that need much of it.
extern "C" __global__ void hold(u32 *started, volatile u32 *release) {
    u64 begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    atomicAdd_system(started, 1);
    do {
        __nanosleep(1000);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (*release == 0 && now - begin < LIMIT_NS);
}
