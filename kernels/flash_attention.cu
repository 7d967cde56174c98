// Flash attention forward.
#include "common.cuh"
