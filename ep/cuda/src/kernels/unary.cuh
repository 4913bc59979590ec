// Unary ops but casts, and predicates: each as a struct with `apply`, and the lists of those that there are.
#pragma once

#include "elementwise.cuh"

template <class W> __device__ __forceinline__ W negated(W x) { return (W)(0 - (Unsigned<W>)x); }
__device__ __forceinline__ f32 negated(f32 x) { return -x; }
__device__ __forceinline__ f64 negated(f64 x) { return -x; }

template <class W> __device__ __forceinline__ W absolute(W x) { return x < 0 ? negated(x) : x; }
__device__ __forceinline__ f32 absolute(f32 x) { return fabsf(x); }
__device__ __forceinline__ f64 absolute(f64 x) { return fabs(x); }

// A function of CUDA's library for both types.
#define BY_WIDTH(name, of_f32, of_f64)                                     \
    __device__ __forceinline__ f32 name(f32 x) { return of_f32(x); }       \
    __device__ __forceinline__ f64 name(f64 x) { return of_f64(x); }

BY_WIDTH(exponential, expf, exp)
BY_WIDTH(logarithm, logf, log)
BY_WIDTH(square_root, sqrtf, sqrt)
BY_WIDTH(hyperbolic_tangent, tanhf, tanh)
BY_WIDTH(error_function, erff, erf)
BY_WIDTH(complement, erfcf, erfc)
BY_WIDTH(rounded_down, floorf, floor)
BY_WIDTH(rounded_up, ceilf, ceil)
BY_WIDTH(rounded_to_even, rintf, rint)
BY_WIDTH(truncated, truncf, trunc)
BY_WIDTH(sine, sinf, sin)
BY_WIDTH(cosine, cosf, cos)
BY_WIDTH(tangent, tanf, tan)
BY_WIDTH(arc_sine, asinf, asin)
BY_WIDTH(arc_cosine, acosf, acos)
BY_WIDTH(arc_tangent, atanf, atan)
BY_WIDTH(hyperbolic_sine, sinhf, sinh)
BY_WIDTH(hyperbolic_cosine, coshf, cosh)
BY_WIDTH(logarithm_of_1_and, log1pf, log1p)
BY_WIDTH(exponential_less_1, expm1f, expm1)
BY_WIDTH(logarithm_to_2, log2f, log2)
BY_WIDTH(logarithm_to_10, log10f, log10)
BY_WIDTH(power_of_2, exp2f, exp2)

template <class W> __device__ __forceinline__ W positive(W x) { return x > 0 || is_nan(x) ? x : (W)0; }

// The exponential is taken of a negative number only, so it cannot overflow.
template <class W> __device__ __forceinline__ W logistic(W x) {
    W small = exponential(-absolute(x));
    W numerator = x >= 0 ? (W)1 : small;
    return numerator / ((W)1 + small);
}

template <class W> __device__ __forceinline__ W reciprocal_root(W x) { return (W)1 / square_root(x); }
template <class W> __device__ __forceinline__ W reciprocal(W x) { return (W)1 / x; }

// NaN stays.
template <class W> __device__ __forceinline__ W sign(W x) { return x > 0 ? (W)1 : x < 0 ? (W)-1 : is_nan(x) ? x : (W)0; }

template <class W> __device__ __forceinline__ W inverted(W x) { return (W)~x; }

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

// `bytes` is the size of the widest type of which four elements are computed at a time: 8, 4 where the code for f64 is long, 0 where all code is.
#define UNARY(op, function, bytes)                                                                           \
    template <class T> struct op {                                                                           \
        enum { FOUR = sizeof(Wide<T>) <= bytes };                                                            \
        static __device__ __forceinline__ T apply(T x) { return To<T>::from(function(wide(x))); }            \
    };

UNARY(Neg, negated, 8)
UNARY(Abs, absolute, 8)
UNARY(Relu, positive, 8)
UNARY(Exp, exponential, 4)
UNARY(Log, logarithm, 4)
UNARY(Sqrt, square_root, 8)
UNARY(Tanh, hyperbolic_tangent, 4)
UNARY(Sigmoid, logistic, 4)
UNARY(Erf, error_function, 4)
UNARY(Gelu, gelu, 4)
UNARY(GeluTanh, gelu_tanh, 4)
UNARY(Silu, silu, 4)
UNARY(Rsqrt, reciprocal_root, 8)
UNARY(Reciprocal, reciprocal, 8)
UNARY(Floor, rounded_down, 8)
UNARY(Ceil, rounded_up, 8)
UNARY(Round, rounded_to_even, 8)
UNARY(Trunc, truncated, 8)
UNARY(Sign, sign, 8)
UNARY(Sin, sine, 0)
UNARY(Cos, cosine, 0)
UNARY(Tan, tangent, 0)
UNARY(Asin, arc_sine, 0)
UNARY(Acos, arc_cosine, 0)
UNARY(Atan, arc_tangent, 0)
UNARY(Sinh, hyperbolic_sine, 0)
UNARY(Cosh, hyperbolic_cosine, 0)
UNARY(Log1p, logarithm_of_1_and, 0)
UNARY(Expm1, exponential_less_1, 0)
UNARY(Log2, logarithm_to_2, 4)
UNARY(Log10, logarithm_to_10, 4)
UNARY(Exp2, power_of_2, 4)
UNARY(BitNot, inverted, 8)

// Of a bool, which is a byte here.
struct Not {
    enum { FOUR = true };
    static __device__ __forceinline__ u8 apply(u8 x) { return x ^ 1; }
};

#define PREDICATE(op, question)                                                                   \
    template <class T> struct op {                                                                \
        enum { FOUR = true };                                                                     \
        static __device__ __forceinline__ u8 apply(T stored) {                                    \
            Wide<T> x = wide(stored);                                                             \
            return question ? 1 : 0;                                                              \
        }                                                                                         \
    };

PREDICATE(IsNan, is_nan(x))
PREDICATE(IsInf, absolute(x) == Range<Wide<T>>::highest())
PREDICATE(IsFinite, absolute(x) < Range<Wide<T>>::highest())

#define UNARY_OF_FLOATS(OF, op, name) OF(op, name, f32) OF(op, name, f64) OF(op, name, f16) OF(op, name, bf16)
#define UNARY_OF_SIGNED_INTEGERS(OF, op, name) OF(op, name, i8) OF(op, name, i16) OF(op, name, i32) OF(op, name, i64)
#define UNARY_OF_INTEGERS(OF, op, name) \
    UNARY_OF_SIGNED_INTEGERS(OF, op, name) OF(op, name, u8) OF(op, name, u16) OF(op, name, u32) OF(op, name, u64)
#define UNARY_OF_SIGNED(OF, op, name) UNARY_OF_FLOATS(OF, op, name) UNARY_OF_SIGNED_INTEGERS(OF, op, name)

// OF(op, name, type) for each, but for bools.
#define EACH_UNARY(OF)                            \
    UNARY_OF_SIGNED(OF, Neg, neg) \
    UNARY_OF_SIGNED(OF, Abs, abs) \
    UNARY_OF_SIGNED(OF, Relu, relu) \
    UNARY_OF_SIGNED(OF, Sign, sign) \
    UNARY_OF_FLOATS(OF, Exp, exp) \
    UNARY_OF_FLOATS(OF, Log, log) \
    UNARY_OF_FLOATS(OF, Sqrt, sqrt) \
    UNARY_OF_FLOATS(OF, Tanh, tanh) \
    UNARY_OF_FLOATS(OF, Sigmoid, sigmoid) \
    UNARY_OF_FLOATS(OF, Erf, erf) \
    UNARY_OF_FLOATS(OF, Gelu, gelu) \
    UNARY_OF_FLOATS(OF, GeluTanh, gelu_tanh) \
    UNARY_OF_FLOATS(OF, Silu, silu) \
    UNARY_OF_FLOATS(OF, Rsqrt, rsqrt) \
    UNARY_OF_FLOATS(OF, Reciprocal, reciprocal) \
    UNARY_OF_FLOATS(OF, Floor, floor) \
    UNARY_OF_FLOATS(OF, Ceil, ceil) \
    UNARY_OF_FLOATS(OF, Round, round) \
    UNARY_OF_FLOATS(OF, Trunc, trunc) \
    UNARY_OF_FLOATS(OF, Sin, sin) \
    UNARY_OF_FLOATS(OF, Cos, cos) \
    UNARY_OF_FLOATS(OF, Tan, tan) \
    UNARY_OF_FLOATS(OF, Asin, asin) \
    UNARY_OF_FLOATS(OF, Acos, acos) \
    UNARY_OF_FLOATS(OF, Atan, atan) \
    UNARY_OF_FLOATS(OF, Sinh, sinh) \
    UNARY_OF_FLOATS(OF, Cosh, cosh) \
    UNARY_OF_FLOATS(OF, Log1p, log1p) \
    UNARY_OF_FLOATS(OF, Expm1, expm1) \
    UNARY_OF_FLOATS(OF, Log2, log2) \
    UNARY_OF_FLOATS(OF, Log10, log10) \
    UNARY_OF_FLOATS(OF, Exp2, exp2) \
    UNARY_OF_INTEGERS(OF, BitNot, bit_not)

// OF(op, name, type of the input) for each.
#define EACH_PREDICATE(OF)              \
    UNARY_OF_FLOATS(OF, IsNan, isnan)   \
    UNARY_OF_FLOATS(OF, IsInf, isinf)   \
    UNARY_OF_FLOATS(OF, IsFinite, isfinite)
