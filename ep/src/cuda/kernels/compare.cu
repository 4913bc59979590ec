// Comparisons of two elements of one dtype, to bool.
#include "elementwise.cuh"

#define COMPARE(op, operator)                                                                          \
    template <class T> struct op {                                                                     \
        enum { FOUR = true }; \
        static __device__ __forceinline__ u8 apply(const Arguments &, T x, T y, u64) {                 \
            return wide(x) operator wide(y) ? 1 : 0;                                                   \
        }                                                                                              \
    };

COMPARE(Eq, ==)
COMPARE(Ne, !=)
COMPARE(Lt, <)
COMPARE(Le, <=)
COMPARE(Gt, >)
COMPARE(Ge, >=)

#define OF(op, name, type, stored)         \
    KERNEL(sv_##name##_##type) {           \
        map2<stored, u8, op<stored>>(arguments); \
    }
// A bool is compared as its byte.
#define OF_ALL(op, name)          \
    OF(op, name, f32, f32)        \
    OF(op, name, f64, f64)        \
    OF(op, name, f16, f16)        \
    OF(op, name, bf16, bf16)      \
    OF(op, name, i32, i32)        \
    OF(op, name, i64, i64)        \
    OF(op, name, u8, u8)          \
    OF(op, name, bool, u8)

OF_ALL(Eq, eq)
OF_ALL(Ne, ne)
OF_ALL(Lt, lt)
OF_ALL(Le, le)
OF_ALL(Gt, gt)
OF_ALL(Ge, ge)
