// Casts from every dtype to every dtype.
#pragma once

#include "elementwise.cuh"

template <class A, class O> struct Cast {
    enum { FOUR = true };
    static __device__ __forceinline__ O apply(A x) { return To<O>::from(wide(x)); }
};

#define CAST_FROM(OF, from, a) \
    OF(from, f32, a, f32)      \
    OF(from, f64, a, f64)      \
    OF(from, f16, a, f16)      \
    OF(from, bf16, a, bf16)    \
    OF(from, i8, a, i8)        \
    OF(from, i16, a, i16)      \
    OF(from, i32, a, i32)      \
    OF(from, i64, a, i64)      \
    OF(from, u8, a, u8)        \
    OF(from, u16, a, u16)      \
    OF(from, u32, a, u32)      \
    OF(from, u64, a, u64)      \
    OF(from, bool, a, boolean)

// OF(from, to, type of the input, type of the output) for each.
#define EACH_CAST(OF)            \
    CAST_FROM(OF, f32, f32)      \
    CAST_FROM(OF, f64, f64)      \
    CAST_FROM(OF, f16, f16)      \
    CAST_FROM(OF, bf16, bf16)    \
    CAST_FROM(OF, i8, i8)        \
    CAST_FROM(OF, i16, i16)      \
    CAST_FROM(OF, i32, i32)      \
    CAST_FROM(OF, i64, i64)      \
    CAST_FROM(OF, u8, u8)        \
    CAST_FROM(OF, u16, u16)      \
    CAST_FROM(OF, u32, u32)      \
    CAST_FROM(OF, u64, u64)      \
    CAST_FROM(OF, bool, boolean)
