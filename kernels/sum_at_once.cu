// Sums a few numbers over the ranks of one host, with one kernel that reads and writes the memory of all
// ranks, and lets all ranks wait for each other.
//
// Definitions: THREADS (in the only block), FLAGS (words at the start of a rank's area: a flag for each rank,
// and in the last word the count of calls).
#include "common.cuh"

// Eight numbers or addresses.
struct Numbers {
    u64 at[8];
};

__device__ __forceinline__ void set_flag(u32 *flag, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ __forceinline__ u32 read_flag(const u32 *flag) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

// tensors[k][·] ← Σ over ranks, in their order, of tensors[k][·], which ends at element ends[k] of all
// `count` tensors together. With no tensors, ranks only wait for each other. A rank's area has room for
// `capacity` numbers of every rank, twice: a rank that is ahead writes the numbers of its next call beside
// those that others still read, and it is never two calls ahead, since it waits for their flags. A flag is
// the number of the last call for which its rank has written everything, so no flag is ever reset.
extern "C" __global__ void __launch_bounds__(THREADS)
sum_at_once(const __grid_constant__ Numbers tensors, const __grid_constant__ Numbers ends,
            const __grid_constant__ Numbers areas, int count, int capacity, int ranks, int own) {
    u32 *area = reinterpret_cast<u32 *>(areas.at[own]);
    u32 call = area[FLAGS - 1] + 1;
    int total = count > 0 ? int(ends.at[count - 1]) : 0;
    auto number = [&](int i) {
        int k = 0;
        while (i >= int(ends.at[k])) k++;
        return reinterpret_cast<float *>(tensors.at[k]) + (i - (k > 0 ? int(ends.at[k - 1]) : 0));
    };
    // The numbers of one rank in the area of another.
    auto written = [&](int in, int of) {
        return reinterpret_cast<float *>(areas.at[in]) + FLAGS + (i64(call & 1) * ranks + of) * capacity;
    };
    for (int i = threadIdx.x; i < total; i += THREADS) {
        float x = *number(i);
        for (int step = 1; step < ranks; step++) written((own + step) % ranks, own)[i] = x;
    }
    // All numbers must be written before the flag that says so.
    __syncthreads();
    if (threadIdx.x < ranks && threadIdx.x != own) {
        __threadfence_system();
        set_flag(reinterpret_cast<u32 *>(areas.at[threadIdx.x]) + own, call);
        while (read_flag(area + threadIdx.x) < call) {
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < total; i += THREADS) {
        float *to = number(i), mine = *to, sum = 0.0f;
        for (int rank = 0; rank < ranks; rank++) {
            float x = rank == own ? mine : __ldcg(written(own, rank) + i);
            sum = rank == 0 ? x : __fadd_rn(sum, x);
        }
        *to = sum;
    }
    if (threadIdx.x == 0) area[FLAGS - 1] = call;
}

// Lets ranks wait for each other, with one warp whose registers fit beside a block that takes nearly all of a
// multiprocessor. It uses the same areas and count as the sums: calls of both kinds are counted together.
extern "C" __global__ void __launch_bounds__(WARP)
wait_for_ranks(const __grid_constant__ Numbers areas, int ranks, int own) {
    u32 *area = reinterpret_cast<u32 *>(areas.at[own]);
    u32 call = area[FLAGS - 1] + 1;
    if (threadIdx.x < ranks && threadIdx.x != own) {
        set_flag(reinterpret_cast<u32 *>(areas.at[threadIdx.x]) + own, call);
        while (read_flag(area + threadIdx.x) < call) {
        }
    }
    __syncwarp();
    if (threadIdx.x == 0) area[FLAGS - 1] = call;
}
