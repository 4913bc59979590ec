// Casts from every dtype to every dtype.
#include "elementwise.cuh"

template <class A, class O> struct Cast {
    enum { FOUR = true };
    static __device__ __forceinline__ O apply(A x) { return To<O>::from(wide(x)); }
};

#define OF(from, to, a, o)              \
    KERNEL(sv_cast_##from##_##to) {     \
        map1<a, o, Cast<a, o>>(arguments); \
    }
#define FROM(from, a)          \
    OF(from, f32, a, f32)      \
    OF(from, f64, a, f64)      \
    OF(from, f16, a, f16)      \
    OF(from, bf16, a, bf16)    \
    OF(from, i32, a, i32)      \
    OF(from, i64, a, i64)      \
    OF(from, u8, a, u8)        \
    OF(from, bool, a, boolean)

FROM(f32, f32)
FROM(f64, f64)
FROM(f16, f16)
FROM(bf16, bf16)
FROM(i32, i32)
FROM(i64, i64)
FROM(u8, u8)
FROM(bool, boolean)
