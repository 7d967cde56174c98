// The gated activation f(gate) ⊙ up, or a formula of both, for the kernels that compute it.
//
// Definitions: T, WIDTH (elements of a row of the output), and ACTIVATION, a functor of activation.cuh or the
// formula of formula.cuh.
#pragma once
#include "formula.cuh"

// The output for a gate and an up value, and the gradients of both, given the gradient of the output.
struct Gradients {
    float value, gate, up;
};

#ifdef FORMULA
__device__ __forceinline__ float output(float gate, float up) { return Formula::at<T>(gate, up).value; }

__device__ __forceinline__ Gradients gradients(float gate, float up, float upstream) {
    PointOfTwo point = Formula::at<T>(gate, up);
    return {point.value, upstream * point.slope_a, upstream * point.slope_b};
}
#else
__device__ __forceinline__ float output(float gate, float up) { return up * ACTIVATION::at<T>(gate).value; }

// d_gate = dy ⊙ up ⊙ f'(gate), d_up = dy ⊙ f(gate).
__device__ __forceinline__ Gradients gradients(float gate, float up, float upstream) {
    Point point = ACTIVATION::at<T>(gate);
    return {up * point.value, upstream * up * point.slope, upstream * point.value};
}
#endif
