// Tensor-core products of one warp and the accesses to shared memory that feed them.
#pragma once
#include "common.cuh"
