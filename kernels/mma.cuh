// Tensor-core products of one warp, and the accesses to shared memory that feed them.
//
// Definitions: THREADS (per block).
//
// A product is mma.m16n8k16: C[16, 8] += A[16, 16]·B[16, 8]. A lane is written 4·g + q, with g = 0 to 7 and q
// = 0 to 3. A register holds a pair of neighbors: two bf16 of A or B, or two of the four fp32 of C. Which
// lane holds which pairs:
//
//                A [16, 16]                          B [16, 8]                      C [16, 8]
//          k = 2q        k = 2q + 8                   n = g                          n = 2q, 2q + 1
//        ┌─────────────┬─────────────┐             ┌─────────────┐                ┌─────────────────┐
//   g    │ a[0]        │ a[2]        │  k = 2q     │ b0          │           g    │ c[0]  c[1]      │
//        ├─────────────┼─────────────┤             ├─────────────┤                ├─────────────────┤
//   g+8  │ a[1]        │ a[3]        │  k = 2q+8   │ b1          │           g+8  │ c[2]  c[3]      │
//        └─────────────┴─────────────┘             └─────────────┘                └─────────────────┘
//
// The pairs of A lie along its row (columns 2q and 2q + 1), the pairs of B along its column (rows 2q and 2q +
// 1). So in the kernels `lane / 4` is a row of A and C (rows `half·8 + lane / 4`), and `lane % 4 * 2` a
// column of C. Two neighboring C, rounded and packed, form an A: this is how probabilities go from one
// product into the next without shared memory.
#pragma once
#include "common.cuh"

__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rounds two neighboring C (columns 0 to 7 and 8 to 15) to the A of the next product.
__device__ __forceinline__ void pack(u32 (&a)[4], const float (&left)[4], const float (&right)[4]) {
    a[0] = pack(left[0], left[1]);
    a[1] = pack(left[2], left[3]);
    a[2] = pack(right[0], right[1]);
    a[3] = pack(right[2], right[3]);
}

// Copies the top bit of each half to all bits of that half.
__device__ __forceinline__ u32 spread_signs(u32 x) {
    u32 y;
    asm("prmt.b32 %0, %1, %1, 0xbb99;" : "=r"(y) : "r"(x));
    return y;
}

// Loads four 8×8 blocks of bf16. Lane l gives the address of a row (16 bytes) of block l / 8. Lane 4·g + q
// gets columns 2q and 2q + 1 of row g from each block or, transposed, rows 2q and 2q + 1 of column g.
__device__ __forceinline__ void ldmatrix_x4(u32 (&to)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&to)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

// Converts a pointer to the shared-memory address that the instructions above take.
__device__ __forceinline__ u32 shared_address(const void *pointer) {
    return u32(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes (or 4) from global to shared memory asynchronously; writes zeros if not `valid`.
__device__ __forceinline__ void cp_async_16(u32 to, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void cp_async_4(u32 to, const void *from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0)
                 : "memory");
}
// Waits for all copies of this thread. The copies of other threads are visible after a barrier.
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Rows of DIM bf16 in shared memory. Their 16-byte chunks are swizzled within a row (chunk number XOR a
// function of the row), so that the eight rows of a block lie in different banks. DIM is a multiple of 32.
template <int DIM> struct Rows {
    static constexpr int BYTES = 2 * DIM;
    static constexpr int CHUNKS = DIM / 8;
    static constexpr int LINE = CHUNKS % 8 == 0 ? 8 : 4;  // Chunks that are swizzled among each other.

    static __device__ __forceinline__ u32 offset(int row, int chunk) {
        int swizzle = LINE == 8 ? row % 8 : row / 2 % 4;
        return row * BYTES + (chunk ^ swizzle) * 16;
    }
    // The address of chunk 2·k (or the next) of a row of `rows`, which begin at a multiple of 8 rows. It is
    // written so that all k share the address of the first: in that address, the bits that k changes come
    // only from the swizzle.
    static __device__ __forceinline__ u32 address(u32 rows, int row, int next, int k) {
        return ((rows + offset(row, next)) ^ k % (LINE / 2) * 32) + k / (LINE / 2) * LINE * 16;
    }

    // Copies COUNT rows of a tensor, `stride` elements apart, from row `first` on, with all threads of the
    // block. Rows from `end` on become zero.
    template <int COUNT>
    static __device__ __forceinline__ void copy(u32 to, const bf16 *from, u32 stride, int first, int end) {
        // Neighboring threads take the chunks of one line. All rows of a thread have the same swizzle.
        constexpr int ROWS = THREADS / LINE;
        static_assert(COUNT % ROWS == 0 && ROWS % 8 == 0, "every thread copies as many chunks");
        // Read again for every copy, so that no value derived from it occupies registers between copies.
        u32 thread;
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
        u32 row = thread / LINE, chunk = thread % LINE;
        to += offset(row, chunk);
        const char *column = reinterpret_cast<const char *>(from + chunk * 8);
#pragma unroll
        for (int step = 0; step < COUNT; step += ROWS) {
            int at = first + int(row) + step;
            const char *piece = column + u64(u32(min(at, end - 1))) * (stride * 2);
#pragma unroll
            for (int line = 0; line < CHUNKS; line += LINE)
                cp_async_16(to + step * BYTES + line * 16, piece + line * 16, at < end);
        }
    }

    // Loads A from 16 rows and from columns 16·k on. `rows` is the address of the first row, whose number
    // must be a multiple of 8.
    static __device__ __forceinline__ void load_a(u32 (&to)[4], u32 rows, int k) {
        int lane = threadIdx.x % WARP;
        ldmatrix_x4(to, address(rows, lane % 16, lane / 16, k));
    }
    // Loads B of two products from 16 rows: the rows from `rows` on are B's columns n, and columns 16·k on
    // are its k. The products take {to[0], to[1]} and {to[2], to[3]}.
    static __device__ __forceinline__ void load_b_from_rows(u32 (&to)[4], u32 rows, int k) {
        int lane = threadIdx.x % WARP;
        ldmatrix_x4(to, address(rows, lane / 16 * 8 + lane % 8, lane / 8 % 2, k));
    }
    // Loads B of two products from 16 rows: the rows from `rows` on are B's k, and columns 16·n on are its
    // columns n.
    static __device__ __forceinline__ void load_b_from_columns(u32 (&to)[4], u32 rows, int n) {
        int lane = threadIdx.x % WARP;
        ldmatrix_x4_trans(to, address(rows, lane % 16, lane / 16, n));
    }

    // Stores C of a warp with its rows multiplied by `factors` (rows g and g + 8 of every 16). The rows pass
    // through `scratch`, shared memory for as many rows that no other warp uses, so that stores are 16 bytes
    // wide. Only the first `valid_rows` rows are stored.
    template <int TILES>
    static __device__ __forceinline__ void store(const float (&c)[TILES][DIM / 8][4],
                                                 const float (&factors)[TILES][2], unsigned char *scratch,
                                                 bf16 *to, int stride, int valid_rows) {
        int lane = threadIdx.x % WARP;
        __syncwarp();
        // As in `address`, all pieces share one address up to a swizzle and constants.
        u32 own = offset(lane / 4, 0) + lane % 4 * 4;
#pragma unroll
        for (int n = 0; n < CHUNKS; n++)
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float factor = factors[m][half];
                    u32 at = (own ^ n % LINE * 16) + (m * 16 + half * 8) * BYTES + n / LINE * LINE * 16;
                    *reinterpret_cast<u32 *>(scratch + at) =
                        pack(c[m][n][2 * half] * factor, c[m][n][2 * half + 1] * factor);
                }
        __syncwarp();
        constexpr int ROWS = WARP / LINE;
        int first = lane / LINE, chunk = lane % LINE;
        to += i64(first) * stride + chunk * 8;
        own = offset(first, chunk);
#pragma unroll
        for (int row = 0; row < TILES * 16; row += ROWS) {
#pragma unroll
            for (int line = 0; line < CHUNKS; line += LINE) {
                // Rows that are 4 apart, as with lines of 8 chunks, differ by 4 chunks in their swizzle.
                u32 at = (own ^ row % 8 * 16) + row * BYTES + line * 16;
                uint4 piece = *reinterpret_cast<const uint4 *>(scratch + at);
                if (first + row < valid_rows) *reinterpret_cast<uint4 *>(to + line * 8) = piece;
            }
            to += i64(ROWS) * stride;
        }
    }
};

// A of rows that stay the same for a whole pass. The first 16·HELD columns stay in registers; the others are
// read from shared memory for every product.
template <int DIM, int TILES, int HELD> struct Operand {
    u32 held[TILES][HELD > 0 ? HELD : 1][4];
    u32 rows;

    // Loads the 16·TILES rows at `from` in shared memory.
    __device__ __forceinline__ void init(u32 from) {
        rows = from;
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int k = 0; k < HELD; k++) Rows<DIM>::load_a(held[m][k], rows + m * 16 * Rows<DIM>::BYTES, k);
    }
    // Returns rows 16·m on, columns 16·k on.
    __device__ __forceinline__ void load_a(u32 (&to)[4], int m, int k) const {
        if (k < HELD) {
#pragma unroll
            for (int i = 0; i < 4; i++) to[i] = held[m][k < HELD ? k : 0][i];
        } else {
            Rows<DIM>::load_a(to, rows + m * 16 * Rows<DIM>::BYTES, k);
        }
    }
};
