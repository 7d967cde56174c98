// A kernel that only occupies multiprocessors, to measure how much other kernels slow down without them.
#include "common.cuh"

// Nanoseconds after which a block ends by itself, in case its host is gone.
constexpr u64 LIMIT_NS = 20'000'000'000ull;
// Nanoseconds between two reads of the flag: many reads of host memory would slow down the rest of the GPU.
constexpr u32 PAUSE_NS = 100'000;

// Each block adds 1 to started[0] and waits until release[0] is set; both are in host memory. The launch
// takes so much dynamic shared memory that blocks of kernels that need much of it do not fit beside it.
extern "C" __global__ void hold(u32 *started, volatile u32 *release) {
    u64 begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    atomicAdd_system(started, 1);
    do {
        __nanosleep(PAUSE_NS);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (*release == 0 && now - begin < LIMIT_NS);
}
