// Step counter.
#include "common.cuh"
