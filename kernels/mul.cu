// Product.
#include "common.cuh"
