// Keys and values of a generation.
#include "common.cuh"
