// Ops of two or three inputs of one dtype to that dtype: each as a struct with `apply`, and the list of those that there are.
#pragma once

#include "failure.cuh"

// The op has a result for every pair.
template <class T> struct Fine {
    static __device__ __forceinline__ bool refuses(T) { return false; }
    static __device__ __forceinline__ void fail(const Arguments &, u64) {}
};

template <class T> struct Add : Fine<T> {
    static __device__ __forceinline__ T apply(T x, T y) { return (T)((Unsigned<T>)x + (Unsigned<T>)y); }
};
template <class T> struct Sub : Fine<T> {
    static __device__ __forceinline__ T apply(T x, T y) { return (T)((Unsigned<T>)x - (Unsigned<T>)y); }
};
template <class T> struct Mul : Fine<T> {
    static __device__ __forceinline__ T apply(T x, T y) { return (T)((Unsigned<T>)x * (Unsigned<T>)y); }
};
// NaN if either is.
template <class T> struct Min : Fine<T> {
    static __device__ __forceinline__ T apply(T x, T y) { return x < y || is_nan(x) ? x : y; }
};
template <class T> struct Max : Fine<T> {
    static __device__ __forceinline__ T apply(T x, T y) { return x > y || is_nan(x) ? x : y; }
};

// A division of integers: what is divided by zero gives 0 and fails.
template <class T> struct Division {
    static __device__ __forceinline__ bool refuses(T y) { return y == 0; }
    static __device__ __forceinline__ void fail(const Arguments &arguments, u64 index) { tell(arguments, index); }
};

// Of integers cut off toward zero; MIN / -1 wraps.
template <class T> __device__ __forceinline__ T quotient(T x, T y) {
    if (y == 0) return 0;
    if (y == (T)-1 && (T)-1 < 0) return (T)(0 - (Unsigned<T>)x);
    return (T)(x / y);
}
// What `quotient` leaves, with the sign of `x`.
template <class T> __device__ __forceinline__ T rest(T x, T y) {
    if (y == 0 || (y == (T)-1 && (T)-1 < 0)) return 0;
    return (T)(x % y);
}
// Exact.
__device__ __forceinline__ f32 rest(f32 x, f32 y) { return fmodf(x, y); }
__device__ __forceinline__ f64 rest(f64 x, f64 y) { return fmod(x, y); }

__device__ __forceinline__ f32 with_sign(f32 x, f32 sign) { return copysignf(x, sign); }
__device__ __forceinline__ f64 with_sign(f64 x, f64 sign) { return copysign(x, sign); }
__device__ __forceinline__ f32 down(f32 x) { return floorf(x); }
__device__ __forceinline__ f64 down(f64 x) { return floor(x); }

template <class T, bool FLOAT = bool(IsFloat<T>::value)> struct Div : Division<T> {
    static __device__ __forceinline__ T apply(T x, T y) { return quotient(x, y); }
};
template <class T> struct Div<T, true> : Fine<T> {
    static __device__ __forceinline__ T apply(T x, T y) { return x / y; }
};

// The largest whole number that is not above the quotient.
template <class T, bool FLOAT = bool(IsFloat<T>::value)> struct FloorDiv : Division<T> {
    static __device__ __forceinline__ T apply(T x, T y) {
        T left = rest(x, y);
        return (T)(quotient(x, y) - (left != 0 && (left < 0) != (y < 0) ? 1 : 0));
    }
};
// By the algorithm of Python and NumPy, as on the CPU: less the exact rest, the quotient is very nearly whole.
template <class T> struct FloorDiv<T, true> : Fine<T> {
    static __device__ __forceinline__ T apply(T x, T y) {
        if (y == 0) return x / y;
        T left = rest(x, y);
        T nearly = (x - left) / y;
        if (left != 0 && (left < 0) != (y < 0)) nearly = nearly - (T)1;
        if (nearly == 0) return with_sign((T)0, x / y);
        T whole = down(nearly);
        return nearly - whole > (T)0.5 ? whole + (T)1 : whole;
    }
};

// What `FloorDiv` leaves, with the sign of `y`.
template <class T, bool FLOAT = bool(IsFloat<T>::value)> struct Remainder : Division<T> {
    static __device__ __forceinline__ T apply(T x, T y) {
        T left = rest(x, y);
        return (T)(left != 0 && (left < 0) != (y < 0) ? left + y : left);
    }
};
template <class T> struct Remainder<T, true> : Fine<T> {
    static __device__ __forceinline__ T apply(T x, T y) {
        T left = rest(x, y);
        if (left == 0) return with_sign(left, y);
        return (left < 0) != (y < 0) ? left + y : left;
    }
};

template <class T> struct Atan2;
template <> struct Atan2<f32> : Fine<f32> {
    static __device__ __forceinline__ f32 apply(f32 y, f32 x) { return atan2f(y, x); }
};
template <> struct Atan2<f64> : Fine<f64> {
    static __device__ __forceinline__ f64 apply(f64 y, f64 x) { return atan2(y, x); }
};

// Of a bool, a byte that is 0 or 1: and, or, exclusive or.
template <class T> struct BitAnd : Fine<T> {
    static __device__ __forceinline__ T apply(T x, T y) { return (T)(x & y); }
};
template <class T> struct BitOr : Fine<T> {
    static __device__ __forceinline__ T apply(T x, T y) { return (T)(x | y); }
};
template <class T> struct BitXor : Fine<T> {
    static __device__ __forceinline__ T apply(T x, T y) { return (T)(x ^ y); }
};

// Whether a value can be moved by so many places: a negative count is a large unsigned one.
template <class T> __device__ __forceinline__ bool is_count(T count) { return (Unsigned<T>)count < 8 * sizeof(T); }

template <class T> struct Shl : Fine<T> {
    static __device__ __forceinline__ T apply(T x, T count) { return is_count(count) ? (T)((Unsigned<T>)x << (u32)count) : (T)0; }
};
// What comes from above are copies of the sign.
template <class T> struct Shr : Fine<T> {
    static __device__ __forceinline__ T apply(T x, T count) {
        T emptied = x < 0 ? (T)-1 : (T)0;
        return is_count(count) ? (T)(x >> (u32)count) : emptied;
    }
};

// Of integers: by squaring, wrapping. What has a negative exponent gives the exponent and fails.
template <class T, bool FLOAT = bool(IsFloat<T>::value)> struct Pow {
    static __device__ __forceinline__ bool refuses(T y) { return y < 0; }

    // The exponent is read from the right-hand input, where it stays even if that is the output too, as `apply` gives it.
    static __device__ __forceinline__ void fail(const Arguments &arguments, u64 index) { tell_value<T>(arguments, index); }

    static __device__ __forceinline__ T apply(T x, T y) {
        if (y < 0) return y;
        Unsigned<T> result = 1, square = (Unsigned<T>)x;
#pragma unroll 1
        for (Unsigned<T> left = (Unsigned<T>)y; left > 0; left >>= 1) {
            if (left & 1) result = (Unsigned<T>)(result * square);
            square = (Unsigned<T>)(square * square);
        }
        return (T)result;
    }
};
template <> struct Pow<f32, true> : Fine<f32> {
    static __device__ __forceinline__ f32 apply(f32 x, f32 y) { return powf(x, y); }
};
template <> struct Pow<f64, true> : Fine<f64> {
    static __device__ __forceinline__ f64 apply(f64 x, f64 y) { return pow(x, y); }
};

// The result of F as an element to store.
template <class T, class F> __device__ __forceinline__ T stored(T x, T y) { return To<T>::from(F::apply(wide(x), wide(y))); }

template <class T, class F, bool AT_ONCE> struct Apply {
    enum { FOUR = AT_ONCE };
    static __device__ __forceinline__ T apply(const Arguments &arguments, T x, T y, u64 index) {
        if (F::refuses(wide(y))) F::fail(arguments, index);
        return stored<T, F>(x, y);
    }
};

template <class T> struct Clamp {
    static __device__ __forceinline__ T apply(T x, T low, T high) {
        return To<T>::from(Min<Wide<T>>::apply(Max<Wide<T>>::apply(wide(x), wide(low)), wide(high)));
    }
};

#define BINARY_OF_FLOATS(OF, op, name, four) \
    OF(op, name, four, f32)                  \
    OF(op, name, four, f64)                  \
    OF(op, name, four, f16)                  \
    OF(op, name, four, bf16)
#define BINARY_OF_INTEGERS(OF, op, name, four)                                                                      \
    OF(op, name, four, i8) OF(op, name, four, i16) OF(op, name, four, i32) OF(op, name, four, i64)                  \
    OF(op, name, four, u8) OF(op, name, four, u16) OF(op, name, four, u32) OF(op, name, four, u64)
#define BINARY_OF_NUMBERS(OF, op, name, four) BINARY_OF_FLOATS(OF, op, name, four) BINARY_OF_INTEGERS(OF, op, name, four)

// OF(op, name, four, type) for each, but for bools; `four` is false where the code is long.
#define EACH_BINARY(OF)                                 \
    BINARY_OF_NUMBERS(OF, Add, add, true)               \
    BINARY_OF_NUMBERS(OF, Sub, sub, true)               \
    BINARY_OF_NUMBERS(OF, Mul, mul, true)               \
    BINARY_OF_FLOATS(OF, Div, div, true)                \
    BINARY_OF_INTEGERS(OF, Div, div, false)             \
    BINARY_OF_NUMBERS(OF, FloorDiv, floor_div, false)   \
    BINARY_OF_NUMBERS(OF, Remainder, remainder, false)  \
    BINARY_OF_NUMBERS(OF, Pow, pow, false)              \
    BINARY_OF_FLOATS(OF, Atan2, atan2, false)           \
    BINARY_OF_NUMBERS(OF, Min, min, true)               \
    BINARY_OF_NUMBERS(OF, Max, max, true)               \
    BINARY_OF_INTEGERS(OF, BitAnd, bit_and, true)       \
    BINARY_OF_INTEGERS(OF, BitOr, bit_or, true)         \
    BINARY_OF_INTEGERS(OF, BitXor, bit_xor, true)       \
    BINARY_OF_INTEGERS(OF, Shl, shl, true)              \
    BINARY_OF_INTEGERS(OF, Shr, shr, true)

// OF(op, name of the kernel) for each of bools, which are bytes here.
#define EACH_BINARY_OF_BOOL(OF) \
    OF(Min, min_bool)           \
    OF(Max, max_bool)           \
    OF(BitAnd, and_bool)        \
    OF(BitOr, or_bool)          \
    OF(BitXor, xor_bool)

// OF(op, name, type) for each op of three inputs.
#define EACH_TERNARY(OF)    \
    OF(Clamp, clamp, f32)   \
    OF(Clamp, clamp, f64)   \
    OF(Clamp, clamp, f16)   \
    OF(Clamp, clamp, bf16)  \
    OF(Clamp, clamp, i8)    \
    OF(Clamp, clamp, i16)   \
    OF(Clamp, clamp, i32)   \
    OF(Clamp, clamp, i64)   \
    OF(Clamp, clamp, u8)    \
    OF(Clamp, clamp, u16)   \
    OF(Clamp, clamp, u32)   \
    OF(Clamp, clamp, u64)
