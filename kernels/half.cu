// One half of a pair.
#include "common.cuh"
