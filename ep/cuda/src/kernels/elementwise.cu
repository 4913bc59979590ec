// The elementwise ops, and the loads and stores of other kernels: each is a function of elements, of which `make ptx` commits the PTX. A kernel is written around them when it is needed
// (elementwise/entry.rs). An op of 16-bit floats is that of f32 between casts, and a bool is a byte, 0 or 1. An integer that an op refuses has any result.
#include "element.cuh"

#define OP(result, name) __device__ __forceinline__ result name
#define TEMPLATE(result, name) template <class T> OP(result, name)
// A function of CUDA's library for both types.
#define OF_LIBRARY(name, of_f32, of_f64)        \
    OP(f32, name)(f32 x) { return of_f32(x); } \
    OP(f64, name)(f64 x) { return ::of_f64(x); }

namespace ops {
TEMPLATE(T, neg)(T x) { return (T)(0 - (Unsigned<T>)x); }
OP(f32, neg)(f32 x) { return -x; }
OP(f64, neg)(f64 x) { return -x; }

TEMPLATE(T, abs)(T x) { return x < 0 ? neg(x) : x; }
OF_LIBRARY(abs, fabsf, fabs)

TEMPLATE(T, relu)(T x) { return x > 0 || is_nan(x) ? x : (T)0; }
// NaN stays.
TEMPLATE(T, sign)(T x) { return x > 0 ? (T)1 : x < 0 ? (T)-1 : is_nan(x) ? x : (T)0; }
TEMPLATE(T, bit_not)(T x) { return (T)~x; }
// `not` is a word of C++.
OP(u8, not_)(u8 x) { return x ^ 1; }

OF_LIBRARY(exp, expf, exp)
OF_LIBRARY(log, logf, log)
OF_LIBRARY(sqrt, sqrtf, sqrt)
OF_LIBRARY(tanh, tanhf, tanh)
OF_LIBRARY(erf, erff, erf)
OF_LIBRARY(complement, erfcf, erfc)
OF_LIBRARY(floor, floorf, floor)
OF_LIBRARY(ceil, ceilf, ceil)
OF_LIBRARY(round, rintf, rint)
OF_LIBRARY(trunc, truncf, trunc)
OF_LIBRARY(sin, sinf, sin)
OF_LIBRARY(cos, cosf, cos)
OF_LIBRARY(tan, tanf, tan)
OF_LIBRARY(asin, asinf, asin)
OF_LIBRARY(acos, acosf, acos)
OF_LIBRARY(atan, atanf, atan)
OF_LIBRARY(sinh, sinhf, sinh)
OF_LIBRARY(cosh, coshf, cosh)
OF_LIBRARY(log1p, log1pf, log1p)
OF_LIBRARY(expm1, expm1f, expm1)
OF_LIBRARY(log2, log2f, log2)
OF_LIBRARY(log10, log10f, log10)
OF_LIBRARY(exp2, exp2f, exp2)

// The exponential is taken of a negative number only, so it cannot overflow.
TEMPLATE(T, sigmoid)(T x) {
    T small = exp(-abs(x));
    T numerator = x >= 0 ? (T)1 : small;
    return numerator / ((T)1 + small);
}

TEMPLATE(T, rsqrt)(T x) { return (T)1 / sqrt(x); }
TEMPLATE(T, reciprocal)(T x) { return (T)1 / x; }

// The activations are 0 at minus infinity, where a product with 0 would be NaN.
TEMPLATE(bool, vanishes)(T x) { return x < (T)-1e9; }
TEMPLATE(T, gelu)(T x) { return vanishes(x) ? (T)0 : (T)0.5 * x * complement(x * (T)-0.70710678118654752440); }
// x / (1 + exp(-v)); where the exponential is infinite, the result is 0.
TEMPLATE(T, weighted)(T x, T v) { return vanishes(x) ? (T)0 : x / ((T)1 + exp(-v)); }
TEMPLATE(T, silu)(T x) { return weighted(x, x); }
// v is twice sqrt(2 / pi) (x + 0.044715 x^3).
TEMPLATE(T, gelu_tanh)(T x) { return weighted(x, x * ((T)1.5957691216057307117 + (T)0.071354816272600248777 * (x * x))); }

TEMPLATE(u8, isnan)(T x) { return is_nan(x) ? 1 : 0; }
TEMPLATE(u8, isinf)(T x) { return abs(x) == Range<T>::highest() ? 1 : 0; }
TEMPLATE(u8, isfinite)(T x) { return abs(x) < Range<T>::highest() ? 1 : 0; }

TEMPLATE(T, add)(T x, T y) { return (T)((Unsigned<T>)x + (Unsigned<T>)y); }
TEMPLATE(T, sub)(T x, T y) { return (T)((Unsigned<T>)x - (Unsigned<T>)y); }
TEMPLATE(T, mul)(T x, T y) { return (T)((Unsigned<T>)x * (Unsigned<T>)y); }
// NaN if either is.
TEMPLATE(T, min)(T x, T y) { return x < y || is_nan(x) ? x : y; }
TEMPLATE(T, max)(T x, T y) { return x > y || is_nan(x) ? x : y; }
TEMPLATE(T, clamp)(T x, T low, T high) { return min(max(x, low), high); }

// Integers are cut off toward zero; MIN / -1 wraps.
TEMPLATE(T, div)(T x, T y) {
    if (y == 0) return 0;
    if (y == (T)-1 && (T)-1 < 0) return (T)(0 - (Unsigned<T>)x);
    return (T)(x / y);
}
OP(f32, div)(f32 x, f32 y) { return x / y; }
OP(f64, div)(f64 x, f64 y) { return x / y; }

// What `div` leaves, with the sign of `x`.
TEMPLATE(T, rest)(T x, T y) {
    if (y == 0 || (y == (T)-1 && (T)-1 < 0)) return 0;
    return (T)(x % y);
}
// Exact.
OP(f32, rest)(f32 x, f32 y) { return fmodf(x, y); }
OP(f64, rest)(f64 x, f64 y) { return fmod(x, y); }
OP(f32, with_sign)(f32 x, f32 sign) { return copysignf(x, sign); }
OP(f64, with_sign)(f64 x, f64 sign) { return copysign(x, sign); }

// The largest whole number that is not above the quotient.
TEMPLATE(T, floor_div)(T x, T y) {
    T left = rest(x, y);
    return (T)(div(x, y) - (left != 0 && (left < 0) != (y < 0) ? 1 : 0));
}
// By the algorithm of Python and NumPy, as on the CPU: less the exact rest, the quotient is very nearly whole.
TEMPLATE(T, floor_div_of_floats)(T x, T y) {
    if (y == 0) return x / y;
    T left = rest(x, y);
    T nearly = (x - left) / y;
    if (left != 0 && (left < 0) != (y < 0)) nearly = nearly - (T)1;
    if (nearly == 0) return with_sign((T)0, x / y);
    T whole = floor(nearly);
    return nearly - whole > (T)0.5 ? whole + (T)1 : whole;
}
OP(f32, floor_div)(f32 x, f32 y) { return floor_div_of_floats(x, y); }
OP(f64, floor_div)(f64 x, f64 y) { return floor_div_of_floats(x, y); }

// What `floor_div` leaves, with the sign of `y`.
TEMPLATE(T, remainder)(T x, T y) {
    T left = rest(x, y);
    return (T)(left != 0 && (left < 0) != (y < 0) ? left + y : left);
}
TEMPLATE(T, remainder_of_floats)(T x, T y) {
    T left = rest(x, y);
    if (left == 0) return with_sign(left, y);
    return (left < 0) != (y < 0) ? left + y : left;
}
OP(f32, remainder)(f32 x, f32 y) { return remainder_of_floats(x, y); }
OP(f64, remainder)(f64 x, f64 y) { return remainder_of_floats(x, y); }

// Of integers: by squaring, wrapping. A negative exponent is the result: so it can still be told if the output lies over the exponents.
TEMPLATE(T, pow)(T x, T y) {
    if (y < 0) return y;
    Unsigned<T> result = 1, square = (Unsigned<T>)x;
#pragma unroll 1
    for (Unsigned<T> left = (Unsigned<T>)y; left > 0; left >>= 1) {
        if (left & 1) result = (Unsigned<T>)(result * square);
        square = (Unsigned<T>)(square * square);
    }
    return (T)result;
}
OP(f32, pow)(f32 x, f32 y) { return powf(x, y); }
OP(f64, pow)(f64 x, f64 y) { return ::pow(x, y); }
OP(f32, atan2)(f32 y, f32 x) { return atan2f(y, x); }
OP(f64, atan2)(f64 y, f64 x) { return ::atan2(y, x); }

// Of a bool: and, or, exclusive or.
TEMPLATE(T, bit_and)(T x, T y) { return (T)(x & y); }
TEMPLATE(T, bit_or)(T x, T y) { return (T)(x | y); }
TEMPLATE(T, bit_xor)(T x, T y) { return (T)(x ^ y); }

// Whether a value can be moved by so many places: a negative count is a large unsigned one.
TEMPLATE(bool, is_count)(T count) { return (Unsigned<T>)count < 8 * sizeof(T); }
TEMPLATE(T, shl)(T x, T count) { return is_count(count) ? (T)((Unsigned<T>)x << (u32)count) : (T)0; }
// What comes from above are copies of the sign.
TEMPLATE(T, shr)(T x, T count) {
    T emptied = x < 0 ? (T)-1 : (T)0;
    return is_count(count) ? (T)(x >> (u32)count) : emptied;
}

TEMPLATE(u8, eq)(T x, T y) { return x == y ? 1 : 0; }
TEMPLATE(u8, ne)(T x, T y) { return x != y ? 1 : 0; }
TEMPLATE(u8, lt)(T x, T y) { return x < y ? 1 : 0; }
TEMPLATE(u8, le)(T x, T y) { return x <= y ? 1 : 0; }
TEMPLATE(u8, gt)(T x, T y) { return x > y ? 1 : 0; }
TEMPLATE(u8, ge)(T x, T y) { return x >= y ? 1 : 0; }

TEMPLATE(T, where)(u8 condition, T x, T y) { return condition != 0 ? x : y; }
} // namespace ops

#define FUNCTION(result, name) extern "C" __device__ __noinline__ result name
#define OF1(op, type) FUNCTION(type, op##_##type)(type x) { return ops::op(x); }
#define TEST(op, type) FUNCTION(u8, op##_##type)(type x) { return ops::op(x); }
#define OF2(op, type) FUNCTION(type, op##_##type)(type x, type y) { return ops::op(x, y); }
#define OF3(op, type) FUNCTION(type, op##_##type)(type x, type y, type z) { return ops::op(x, y, z); }
#define COMPARE(op, type) FUNCTION(u8, op##_##type)(type x, type y) { return ops::op(x, y); }

#define FLOATS(OF, op) OF(op, f32) OF(op, f64)
#define SIGNED_INTEGERS(OF, op) OF(op, i8) OF(op, i16) OF(op, i32) OF(op, i64)
#define INTEGERS(OF, op) SIGNED_INTEGERS(OF, op) OF(op, u8) OF(op, u16) OF(op, u32) OF(op, u64)
#define SIGNED(OF, op) FLOATS(OF, op) SIGNED_INTEGERS(OF, op)
#define NUMBERS(OF, op) FLOATS(OF, op) INTEGERS(OF, op)

SIGNED(OF1, neg) SIGNED(OF1, abs) SIGNED(OF1, relu) SIGNED(OF1, sign)
FLOATS(OF1, exp) FLOATS(OF1, log) FLOATS(OF1, sqrt) FLOATS(OF1, tanh) FLOATS(OF1, sigmoid) FLOATS(OF1, erf) FLOATS(OF1, gelu)
FLOATS(OF1, gelu_tanh) FLOATS(OF1, silu) FLOATS(OF1, rsqrt) FLOATS(OF1, reciprocal) FLOATS(OF1, floor) FLOATS(OF1, ceil)
FLOATS(OF1, round) FLOATS(OF1, trunc) FLOATS(OF1, sin) FLOATS(OF1, cos) FLOATS(OF1, tan) FLOATS(OF1, asin) FLOATS(OF1, acos)
FLOATS(OF1, atan) FLOATS(OF1, sinh) FLOATS(OF1, cosh) FLOATS(OF1, log1p) FLOATS(OF1, expm1) FLOATS(OF1, log2) FLOATS(OF1, log10)
FLOATS(OF1, exp2) INTEGERS(OF1, bit_not)
FLOATS(TEST, isnan) FLOATS(TEST, isinf) FLOATS(TEST, isfinite)
NUMBERS(OF2, add) NUMBERS(OF2, sub) NUMBERS(OF2, mul) NUMBERS(OF2, div) NUMBERS(OF2, floor_div) NUMBERS(OF2, remainder)
NUMBERS(OF2, pow) NUMBERS(OF2, min) NUMBERS(OF2, max) FLOATS(OF2, atan2) INTEGERS(OF2, bit_and) INTEGERS(OF2, bit_or)
INTEGERS(OF2, bit_xor) INTEGERS(OF2, shl) INTEGERS(OF2, shr)
NUMBERS(OF3, clamp)
NUMBERS(COMPARE, eq) NUMBERS(COMPARE, ne) NUMBERS(COMPARE, lt) NUMBERS(COMPARE, le) NUMBERS(COMPARE, gt) NUMBERS(COMPARE, ge)

// Of bools.
FUNCTION(u8, not_bool)(u8 x) { return ops::not_(x); }
#define OF_BOOL(name, op) FUNCTION(u8, name##_bool)(u8 x, u8 y) { return ops::op(x, y); }
OF_BOOL(min, min) OF_BOOL(max, max) OF_BOOL(and, bit_and) OF_BOOL(or, bit_or) OF_BOOL(xor, bit_xor)
OF_BOOL(eq, eq) OF_BOOL(ne, ne) OF_BOOL(lt, lt) OF_BOOL(le, le) OF_BOOL(gt, gt) OF_BOOL(ge, ge)

// By the size of an element.
#define WHERE(type) FUNCTION(type, where_##type)(u8 condition, type x, type y) { return ops::where(condition, x, y); }
WHERE(u8) WHERE(u16) WHERE(u32) WHERE(u64)

#define CAST(a, o) FUNCTION(o, cast_##a##_##o)(a x) { return To<o>::from(wide(x)); }
#define CASTS(a)                                                                \
    NUMBERS(CAST, a)                                                            \
    FUNCTION(u16, cast_##a##_f16)(a x) { return To<f16>::from(wide(x)).bits; }   \
    FUNCTION(u16, cast_##a##_bf16)(a x) { return To<bf16>::from(wide(x)).bits; } \
    FUNCTION(u8, cast_##a##_bool)(a x) { return To<boolean>::from(wide(x)).byte; }
CASTS(f32) CASTS(f64) CASTS(i8) CASTS(i16) CASTS(i32) CASTS(i64) CASTS(u8) CASTS(u16) CASTS(u32) CASTS(u64)
#define CAST_BOOL(_, o) FUNCTION(o, cast_bool_##o)(u8 x) { return To<o>::from(wide(boolean{x})); }
NUMBERS(CAST_BOOL, _)
FUNCTION(u16, cast_bool_f16)(u8 x) { return To<f16>::from(wide(boolean{x})).bits; }
FUNCTION(u16, cast_bool_bf16)(u8 x) { return To<bf16>::from(wide(boolean{x})).bits; }
FUNCTION(u8, cast_bool_bool)(u8 x) { return wide(boolean{x}); }
FUNCTION(f32, cast_f16_f32)(u16 x) { return wide(f16{x}); }
FUNCTION(f32, cast_bf16_f32)(u16 x) { return wide(bf16{x}); }

// How far along an axis an index is: one of 32 bits is divided as such.
FUNCTION(u64, quotient)(u64 index, u64 size) { return index / size; }

ELEMENTS(i64, i8) ELEMENTS(i64, i16) ELEMENTS(i64, i32) ELEMENTS(i64, i64)
ELEMENTS(i64, u8) ELEMENTS(i64, u16) ELEMENTS(i64, u32) ELEMENTS(i64, u64)
ELEMENTS(u64, u8) ELEMENTS(u64, u16) ELEMENTS(u64, u32) ELEMENTS(u64, u64)
ELEMENTS(f32, f32) ELEMENTS(f32, f16) ELEMENTS(f32, bf16)
ELEMENTS(f64, f64) ELEMENTS(f64, f32) ELEMENTS(f64, f16) ELEMENTS(f64, bf16)
