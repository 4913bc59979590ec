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
    UNARY_OF_FLOATS(OF, Sigmoid, sigmoid)
