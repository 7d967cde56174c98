// Matrices of one shape in the flat parameter buffers, and the blocks of a grid over them: x goes through the
// elements of a matrix, y through the matrices. Definitions: ROWS rows, one for each rank or for all, of at
// most MATRIX_COUNT matrices, each given by its first element in the flat buffers (FLAT_STARTS), among the
// masters (MASTER_STARTS) and in the optimizer's slots (SLOT_STARTS), followed by sentinels; THREADS of a
// block, each of which goes through ROUNDS rounds of VEC neighbours, a divisor of all of these and of a
// matrix.
#pragma once
#include "common.cuh"
#include "streaming.cuh"

// Elements from one round of a thread to the next, and of a block.
constexpr u64 STRIDE = THREADS * VEC, BLOCK = STRIDE * ROUNDS;

__constant__ u64 FLAT[ROWS][MATRIX_COUNT + 1] = FLAT_STARTS,
                 MASTERS[ROWS][MATRIX_COUNT + 1] = MASTER_STARTS,
                 SLOTS[ROWS][MATRIX_COUNT + 1] = SLOT_STARTS;

// The first element of a thread within its matrix.
__device__ __forceinline__ u64 first_of_thread() { return u64(blockIdx.x) * BLOCK + threadIdx.x * VEC; }
