// The part of a table that a rank owns. Definitions: OWNED (1 if ranks divide the table; 0 if each has all of
// it).
#pragma once
#include "common.cuh"

// Elements of the table: two ranges between multiples of 8, possibly empty.
struct Owned {
    u64 begin[2], end[2];
    __device__ __forceinline__ bool has(u64 at) const {
        return !OWNED || (at >= begin[0] && at < end[0]) || (at >= begin[1] && at < end[1]);
    }
    // True if the rank owns any element of a row of d elements.
    __device__ __forceinline__ bool has_some_of(u32 row, int d) const {
        u64 first = u64(row) * d, last = first + d;
        return !OWNED || (last > begin[0] && first < end[0]) || (last > begin[1] && first < end[1]);
    }
};
