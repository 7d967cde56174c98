// Matrices of one shape in the flat parameter buffers, and a grid of blocks over them: x counts blocks within
// a matrix, y matrices. Definitions: ROWS table rows, one per rank or a single one for all; each lists up to
// MATRIX_COUNT matrices by their first element in the flat buffers (FLAT_STARTS), among the masters
// (MASTER_STARTS) and in the optimizer's slots (SLOT_STARTS), followed by sentinels. Each of the THREADS of a
// block does ROUNDS rounds of VEC neighbors. VEC divides all first elements and the size of a matrix.
#pragma once
#include "common.cuh"
#include "streaming.cuh"

// Elements from one round of a thread to the next, and elements per block.
constexpr u64 STRIDE = THREADS * VEC, BLOCK = STRIDE * ROUNDS;

__constant__ u64 FLAT[ROWS][MATRIX_COUNT + 1] = FLAT_STARTS,
                 MASTERS[ROWS][MATRIX_COUNT + 1] = MASTER_STARTS,
                 SLOTS[ROWS][MATRIX_COUNT + 1] = SLOT_STARTS;

// Returns the first element of a thread within its matrix.
__device__ __forceinline__ u64 first_of_thread() { return u64(blockIdx.x) * BLOCK + threadIdx.x * VEC; }
