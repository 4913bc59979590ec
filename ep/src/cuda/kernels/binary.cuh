// Ops of two inputs of one dtype to that dtype: each as a struct with `apply`, and the list of those that there are.
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

// Of integers: cuts off toward zero, MIN / -1 wraps, and what is divided by zero gives 0 and fails.
template <class T, bool FLOAT = bool(IsFloat<T>::value)> struct Div {
    static __device__ __forceinline__ bool refuses(T y) { return y == 0; }
    static __device__ __forceinline__ void fail(const Arguments &arguments, u64 index) { tell(arguments, index); }
    static __device__ __forceinline__ T apply(T x, T y) {
        if (y == 0) return 0;
        if (y == (T)-1 && (T)-1 < 0) return (T)(0 - (Unsigned<T>)x);
        return (T)(x / y);
    }
};
template <class T> struct Div<T, true> : Fine<T> {
    static __device__ __forceinline__ T apply(T x, T y) { return x / y; }
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

#define BINARY_OF_FLOATS(OF, op, name, four) \
    OF(op, name, four, f32)                  \
    OF(op, name, four, f64)                  \
    OF(op, name, four, f16)                  \
    OF(op, name, four, bf16)
#define BINARY_OF_NUMBERS(OF, op, name, four) \
    BINARY_OF_FLOATS(OF, op, name, four) OF(op, name, four, i32) OF(op, name, four, i64) OF(op, name, four, u8)

// OF(op, name, four, type) for each, but for bools; `four` is false where the code is long.
#define EACH_BINARY(OF)                     \
    BINARY_OF_NUMBERS(OF, Add, add, true)   \
    BINARY_OF_NUMBERS(OF, Sub, sub, true)   \
    BINARY_OF_NUMBERS(OF, Mul, mul, true)   \
    BINARY_OF_FLOATS(OF, Div, div, true)    \
    OF(Div, div, false, i32)                \
    OF(Div, div, false, i64)                \
    OF(Div, div, false, u8)                 \
    BINARY_OF_NUMBERS(OF, Pow, pow, false)  \
    BINARY_OF_NUMBERS(OF, Min, min, true)   \
    BINARY_OF_NUMBERS(OF, Max, max, true)
