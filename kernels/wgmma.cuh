// Tensor-core products of a warpgroup (four warps, 128 threads) on sm_90a. B, and often A, lie in shared
// memory.
//
// A product is wgmma.m64nNk16: C[64, N] (+)= A[64, 16]·B[16, N], with bf16 factors and fp32 sums. Warp w of
// the warpgroup holds rows 16·w to 16·w + 15 of C, and of A if it is in registers. They are laid out as in
// mma.m16n8k16 (mma.cuh): lane 4·g + q holds
//
//   c[4·n + 0], c[4·n + 1]   row g,     columns 8·n + 2·q and the next       (n = 0 to N/8 − 1)
//   c[4·n + 2], c[4·n + 3]   row g + 8, the same columns
//
// so that eight neighboring C, rounded and packed, are the A of the next product: a[0] and a[1] are rows g
// and g + 8 of columns 2·q, a[2] and a[3] the same rows of columns 2·q + 8.
//
// In shared memory a factor lies in panels of 64 columns: rows of 128 bytes, whose eight 16-byte chunks are
// swizzled (chunk number XOR row % 8), as TMA writes them with a box of 64 columns and a swizzle of 128
// bytes. Panels begin at multiples of 1,024 bytes and follow each other at rows·128 bytes. A factor of 32
// columns lies in rows of 64 bytes instead, whose four chunks are swizzled (chunk number XOR row / 2 % 4), as
// TMA writes them with a box of 32 columns and a swizzle of 64 bytes; it begins at a multiple of 512 bytes.
//
// Products run asynchronously. A warpgroup calls `products_begin` after it has changed registers that they
// use, issues products, groups them with `products_commit`, and touches C (and A in registers) only after
// `products_wait` and `hold` on these registers.
#pragma once
#include "common.cuh"

// ---- Factors in shared memory.

// A factor whose summed dimension is the panel's columns: A[m, k] or B[n, k] stored as rows of k. The columns
// 16·i of a panel begin at `k_columns_factor(...) + 2·i`.
__device__ __forceinline__ u64 k_columns_factor(u32 panel) {
    constexpr u64 SWIZZLE_128 = 1ull << 62, EIGHT_ROWS = u64(1024 / 16) << 32;
    return SWIZZLE_128 | EIGHT_ROWS | 1ull << 16 | (panel & 0x3ffffu) >> 4;
}
// A factor whose summed dimension is the rows: A[m, k] or B[k, n] stored as rows of m or n. If these are
// longer than 64, they lie in panels `panel_bytes` apart. Rows 16·i begin at `k_rows_factor(...) + 128·i`.
__device__ __forceinline__ u64 k_rows_factor(u32 panel, u32 panel_bytes) {
    constexpr u64 SWIZZLE_128 = 1ull << 62, EIGHT_ROWS = u64(1024 / 16) << 32;
    return SWIZZLE_128 | EIGHT_ROWS | u64(panel_bytes / 16) << 16 | (panel & 0x3ffffu) >> 4;
}

// A factor in rows of 64 bytes, of either kind. Its columns 16·i begin at `narrow_factor(...) + 2·i`, its
// rows 16·i at `narrow_factor(...) + 64·i`.
__device__ __forceinline__ u64 narrow_factor(u32 panel) {
    constexpr u64 SWIZZLE_64 = 2ull << 62, EIGHT_ROWS = u64(512 / 16) << 32;
    return SWIZZLE_64 | EIGHT_ROWS | 1ull << 16 | (panel & 0x3ffffu) >> 4;
}

// How a factor is stored in shared memory.
constexpr int K_COLUMNS = 0, K_ROWS = 1;

// ---- Order of products.

// Orders this warpgroup's registers before the products that follow.
__device__ __forceinline__ void products_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most PENDING groups are unfinished.
template <int PENDING> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Keeps the compiler from moving reads or writes of these registers across this place.
template <int N> __device__ __forceinline__ void hold(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}
template <int N> __device__ __forceinline__ void hold(u32 (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(x[i])::"memory");
}

// Stores four 8×8 blocks of bf16 to shared memory. Lane l gives the address of a row (16 bytes) of block l /
// 8. Lane 4·g + q has columns 2q and 2q + 1 of row g of each block.
__device__ __forceinline__ void stmatrix_x4(u32 row, const u32 (&from)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(from[0]),
                 "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
}

__device__ __forceinline__ float2 load_shared_2(u32 at) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at));
    return x;
}

// ---- Registers per thread, a multiple of 8. All warps of the warpgroup must call these.

template <int REGISTERS> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// A barrier of `threads` threads, by number (1 to 15; __syncthreads() uses 0).
__device__ __forceinline__ void named_barrier(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// Counts these threads in but does not wait.
__device__ __forceinline__ void named_barrier_arrive(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// ---- The instruction for every N that kernels use. If `add` is false, C is overwritten.

#define C_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define C_32 \
    C_16 ", " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define C_48 \
    C_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define C_64 \
    C_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define C_96 \
    C_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define C4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define C16(i) C4(i), C4(i + 4), C4(i + 8), C4(i + 12)
#define C_OF_32 C16(0), C16(16)
#define C_OF_48 C_OF_32, C16(32)
#define C_OF_64 C_OF_48, C16(48)
#define C_OF_96 C_OF_64, C16(64), C16(80)

// A and B in shared memory.
template <int A_STORED, int B_STORED, int N>
__device__ __forceinline__ void product(float (&c)[N], u64 a, u64 b, bool add) {
    static_assert(N == 16 || N == 32 || N == 48 || N == 64 || N == 96, "N is 32, 64, 96, 128 or 192");
    if constexpr (N == 16)
        asm volatile("{\n.reg .pred sum;\nsetp.ne.b32 sum, %18, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" C_16 "}, "
                     "%16, %17, sum, 1, 1, %19, %20;\n}"
                     : C16(0)
                     : "l"(a), "l"(b), "r"(int(add)), "n"(A_STORED), "n"(B_STORED));
    else if constexpr (N == 32)
        asm volatile("{\n.reg .pred sum;\nsetp.ne.b32 sum, %34, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" C_32 "}, "
                     "%32, %33, sum, 1, 1, %35, %36;\n}"
                     : C_OF_32
                     : "l"(a), "l"(b), "r"(int(add)), "n"(A_STORED), "n"(B_STORED));
    else if constexpr (N == 48)
        asm volatile("{\n.reg .pred sum;\nsetp.ne.b32 sum, %50, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" C_48 "}, "
                     "%48, %49, sum, 1, 1, %51, %52;\n}"
                     : C_OF_48
                     : "l"(a), "l"(b), "r"(int(add)), "n"(A_STORED), "n"(B_STORED));
    else if constexpr (N == 64)
        asm volatile("{\n.reg .pred sum;\nsetp.ne.b32 sum, %66, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" C_64 "}, "
                     "%64, %65, sum, 1, 1, %67, %68;\n}"
                     : C_OF_64
                     : "l"(a), "l"(b), "r"(int(add)), "n"(A_STORED), "n"(B_STORED));
    else if constexpr (N == 96)
        asm volatile("{\n.reg .pred sum;\nsetp.ne.b32 sum, %98, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" C_96 "}, "
                     "%96, %97, sum, 1, 1, %99, %100;\n}"
                     : C_OF_96
                     : "l"(a), "l"(b), "r"(int(add)), "n"(A_STORED), "n"(B_STORED));
}

// A in registers, B in shared memory.
template <int B_STORED, int N>
__device__ __forceinline__ void product(float (&c)[N], const u32 *a, u64 b, bool add) {
    static_assert(N == 16 || N == 32 || N == 48 || N == 64 || N == 96, "N is 32, 64, 96, 128 or 192");
    if constexpr (N == 16)
        asm volatile("{\n.reg .pred sum;\nsetp.ne.b32 sum, %21, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" C_16 "}, "
                     "{%16, %17, %18, %19}, %20, sum, 1, 1, %22;\n}"
                     : C16(0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "n"(B_STORED));
    else if constexpr (N == 32)
        asm volatile("{\n.reg .pred sum;\nsetp.ne.b32 sum, %37, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" C_32 "}, "
                     "{%32, %33, %34, %35}, %36, sum, 1, 1, %38;\n}"
                     : C_OF_32
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "n"(B_STORED));
    else if constexpr (N == 48)
        asm volatile("{\n.reg .pred sum;\nsetp.ne.b32 sum, %53, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" C_48 "}, "
                     "{%48, %49, %50, %51}, %52, sum, 1, 1, %54;\n}"
                     : C_OF_48
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "n"(B_STORED));
    else if constexpr (N == 64)
        asm volatile("{\n.reg .pred sum;\nsetp.ne.b32 sum, %69, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" C_64 "}, "
                     "{%64, %65, %66, %67}, %68, sum, 1, 1, %70;\n}"
                     : C_OF_64
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "n"(B_STORED));
    else if constexpr (N == 96)
        asm volatile("{\n.reg .pred sum;\nsetp.ne.b32 sum, %101, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" C_96 "}, "
                     "{%96, %97, %98, %99}, %100, sum, 1, 1, %102;\n}"
                     : C_OF_96
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "n"(B_STORED));
}
#undef C_16
#undef C_32
#undef C_48
#undef C_64
#undef C_96
#undef C4
#undef C16
#undef C_OF_32
#undef C_OF_48
#undef C_OF_64
#undef C_OF_96
