// Unary ops but casts: each as a struct with `apply`, and the list of those that there are.
#pragma once

#include "elementwise.cuh"

template <class W> __device__ __forceinline__ W negated(W x) { return (W)(0 - (Unsigned<W>)x); }
__device__ __forceinline__ f32 negated(f32 x) { return -x; }
__device__ __forceinline__ f64 negated(f64 x) { return -x; }

template <class W> __device__ __forceinline__ W absolute(W x) { return x < 0 ? negated(x) : x; }
__device__ __forceinline__ f32 absolute(f32 x) { return fabsf(x); }
__device__ __forceinline__ f64 absolute(f64 x) { return fabs(x); }

__device__ __forceinline__ f32 exponential(f32 x) { return expf(x); }
__device__ __forceinline__ f64 exponential(f64 x) { return exp(x); }
__device__ __forceinline__ f32 logarithm(f32 x) { return logf(x); }
__device__ __forceinline__ f64 logarithm(f64 x) { return log(x); }
__device__ __forceinline__ f32 square_root(f32 x) { return sqrtf(x); }
__device__ __forceinline__ f64 square_root(f64 x) { return sqrt(x); }
__device__ __forceinline__ f32 tangent(f32 x) { return tanhf(x); }
__device__ __forceinline__ f64 tangent(f64 x) { return tanh(x); }

template <class W> __device__ __forceinline__ W positive(W x) { return x > 0 || is_nan(x) ? x : (W)0; }

// The exponential is taken of a negative number only, so it cannot overflow.
template <class W> __device__ __forceinline__ W logistic(W x) {
    W small = exponential(-absolute(x));
    W numerator = x >= 0 ? (W)1 : small;
    return numerator / ((W)1 + small);
}

__device__ __forceinline__ f32 error_function(f32 x) { return erff(x); }
__device__ __forceinline__ f64 error_function(f64 x) { return erf(x); }
__device__ __forceinline__ f32 complement(f32 x) { return erfcf(x); }
__device__ __forceinline__ f64 complement(f64 x) { return erfc(x); }

template <class W> __device__ __forceinline__ W reciprocal_root(W x) { return (W)1 / square_root(x); }

// The activations are 0 at minus infinity, where a product with 0 would be NaN.
template <class W> __device__ __forceinline__ bool vanishes(W x) { return x < (W)-1e9; }

template <class W> __device__ __forceinline__ W gelu(W x) {
    return vanishes(x) ? (W)0 : (W)0.5 * x * complement(x * (W)-0.70710678118654752440);
}

// x / (1 + exp(-v)); where the exponential is infinite, the result is 0.
template <class W> __device__ __forceinline__ W weighted(W x, W v) {
    return vanishes(x) ? (W)0 : x / ((W)1 + exponential(-v));
}

template <class W> __device__ __forceinline__ W silu(W x) { return weighted(x, x); }

// v is twice sqrt(2 / pi) (x + 0.044715 x^3).
template <class W> __device__ __forceinline__ W gelu_tanh(W x) {
    return weighted(x, x * ((W)1.5957691216057307117 + (W)0.071354816272600248777 * (x * x)));
}

#define UNARY(op, function, four)                                                                            \
    template <class T> struct op {                                                                           \
        enum { FOUR = four || sizeof(Wide<T>) < 8 }; \
        static __device__ __forceinline__ T apply(T x) { return To<T>::from(function(wide(x))); }            \
    };

UNARY(Neg, negated, true)
UNARY(Abs, absolute, true)
UNARY(Relu, positive, true)
UNARY(Exp, exponential, false)
UNARY(Log, logarithm, false)
UNARY(Sqrt, square_root, true)
UNARY(Tanh, tangent, false)
UNARY(Sigmoid, logistic, false)
UNARY(Erf, error_function, false)
UNARY(Gelu, gelu, false)
UNARY(GeluTanh, gelu_tanh, false)
UNARY(Silu, silu, false)
UNARY(Rsqrt, reciprocal_root, true)

#define UNARY_OF_FLOATS(OF, op, name) OF(op, name, f32) OF(op, name, f64) OF(op, name, f16) OF(op, name, bf16)
#define UNARY_OF_SIGNED(OF, op, name) UNARY_OF_FLOATS(OF, op, name) OF(op, name, i32) OF(op, name, i64)

// OF(op, name, type) for each.
#define EACH_UNARY(OF)                   \
    UNARY_OF_SIGNED(OF, Neg, neg)        \
    UNARY_OF_SIGNED(OF, Abs, abs)        \
    UNARY_OF_SIGNED(OF, Relu, relu)      \
    UNARY_OF_FLOATS(OF, Exp, exp)        \
    UNARY_OF_FLOATS(OF, Log, log)        \
    UNARY_OF_FLOATS(OF, Sqrt, sqrt)      \
    UNARY_OF_FLOATS(OF, Tanh, tanh)      \
    UNARY_OF_FLOATS(OF, Sigmoid, sigmoid) \
    UNARY_OF_FLOATS(OF, Erf, erf)        \
    UNARY_OF_FLOATS(OF, Gelu, gelu)      \
    UNARY_OF_FLOATS(OF, GeluTanh, gelu_tanh) \
    UNARY_OF_FLOATS(OF, Silu, silu)      \
    UNARY_OF_FLOATS(OF, Rsqrt, rsqrt)
