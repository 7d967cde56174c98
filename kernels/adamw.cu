// AdamW.
#include "common.cuh"
