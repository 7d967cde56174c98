// Copies of tiles between global and shared memory by the tensor memory accelerator, and the barriers in
// shared memory that they report to. For sm_90 and later.
//
// One thread starts a copy of a box of a tensor with up to four dimensions. The hardware computes addresses,
// swizzles, fills what lies outside the tensor with zeros (or leaves it out of a store), and counts the bytes
// that have landed on an mbarrier. A map of 128 bytes describes the tensor; the host encodes it
// (cuTensorMapEncodeTiled) and passes it as a `const __grid_constant__ TensorMap` parameter.
#pragma once
#include "common.cuh"

// The driver's description of a tensor, of its box, and of the swizzle in shared memory.
struct __align__(64) TensorMap {
    u64 words[16];
};

// ---- Barriers in shared memory; `barrier` is the address of 8 bytes.

// Sets the number of arrivals that complete a phase.
__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialized barriers visible to copies; __syncthreads() makes them visible to the other threads.
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and keeps the phase open until this many bytes have been copied.
__device__ __forceinline__ void barrier_arrive_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
// Waits until the phase with this parity is complete. A new barrier is in phase 0; the phase before it, with
// parity 1, counts as complete.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier), "r"(parity)
                 : "memory");
}

// A position in a ring of SLOTS, and the parity of the round.
template <int SLOTS> struct RingPosition {
    u32 slot = 0, parity = 0;

    __device__ __forceinline__ void advance() {
        slot++;
        if (slot == SLOTS) slot = 0, parity ^= 1;
    }
};

// ---- Copies. Coordinates count elements, fastest dimension first.

__device__ __forceinline__ void prefetch_map(const TensorMap &map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// Copies a box to shared memory; `barrier` counts its bytes.
__device__ __forceinline__ void load_box(u32 to, const TensorMap &map, u32 barrier, int x0, int x1, int x2,
                                         int x3) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(&map), "r"(barrier), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
                 : "memory");
}
// Copies consecutive bytes to shared memory; `barrier` counts them. Their number and both addresses are
// multiples of 16.
__device__ __forceinline__ void load_bytes(u32 to, const void *from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
// Copies a box from shared memory. Data written there by threads needs `async_proxy_fence` first.
__device__ __forceinline__ void store_box(const TensorMap &map, u32 from, int x0, int x1, int x2, int x3) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
                 "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
                 "r"(from), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
                 : "memory");
}
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until the stores of this thread have read shared memory.
__device__ __forceinline__ void store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Orders this thread's writes to shared memory before copies (and wgmma) that start after a barrier.
__device__ __forceinline__ void async_proxy_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
