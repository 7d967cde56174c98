// Flash attention backward.
#include "common.cuh"
