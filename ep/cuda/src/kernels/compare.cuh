// Comparisons of two elements of one dtype, to bool: each as a struct with `apply`, and the list of those that there are.
#pragma once

#include "elementwise.cuh"

#define COMPARE(op, operator)                                                                                           \
    template <class T> struct op {                                                                                      \
        enum { FOUR = true };                                                                                           \
        static __device__ __forceinline__ u8 apply(T x, T y) { return wide(x) operator wide(y) ? 1 : 0; }               \
        static __device__ __forceinline__ u8 apply(const Arguments &, T x, T y, u64) { return apply(x, y); }            \
    };

COMPARE(Eq, ==)
COMPARE(Ne, !=)
COMPARE(Lt, <)
COMPARE(Le, <=)
COMPARE(Gt, >)
COMPARE(Ge, >=)

// A bool is compared as its byte.
#define COMPARE_OF_ALL(OF, op, name) \
    OF(op, name, f32, f32)           \
    OF(op, name, f64, f64)           \
    OF(op, name, f16, f16)           \
    OF(op, name, bf16, bf16)         \
    OF(op, name, i8, i8)             \
    OF(op, name, i16, i16)           \
    OF(op, name, i32, i32)           \
    OF(op, name, i64, i64)           \
    OF(op, name, u8, u8)             \
    OF(op, name, u16, u16)           \
    OF(op, name, u32, u32)           \
    OF(op, name, u64, u64)           \
    OF(op, name, bool, u8)

// OF(op, name, dtype, type of the inputs) for each.
#define EACH_COMPARISON(OF)    \
    COMPARE_OF_ALL(OF, Eq, eq) \
    COMPARE_OF_ALL(OF, Ne, ne) \
    COMPARE_OF_ALL(OF, Lt, lt) \
    COMPARE_OF_ALL(OF, Le, le) \
    COMPARE_OF_ALL(OF, Gt, gt) \
    COMPARE_OF_ALL(OF, Ge, ge)
