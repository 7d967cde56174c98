// Sum.
#include "common.cuh"
