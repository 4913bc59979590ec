// What moves bits and computes nothing: copy, fill, where. One kernel for each size of element would do for all; `where` has
// one for each dtype, so that its name says its operands.
#include "elementwise.cuh"

template <class T> struct Same {
    enum { FOUR = true };
    static __device__ __forceinline__ T apply(T x) { return x; }
};

template <class T> struct Pick {
    static __device__ __forceinline__ T apply(u8 condition, T x, T y) { return condition != 0 ? x : y; }
};

#define OF_SIZE(bytes, type)                                      \
    KERNEL(sv_copy_##bytes) { map1<type, type, Same<type>>(arguments); } \
    KERNEL(sv_fill_##bytes) { map0<type>(arguments, (type)arguments.value); }

OF_SIZE(1, u8)
OF_SIZE(2, u16)
OF_SIZE(4, u32)
OF_SIZE(8, u64)

#define WHERE(type, bits) \
    KERNEL(sv_where_##type) { map3<u8, bits, Pick<bits>>(arguments); }

WHERE(f32, u32)
WHERE(f64, u64)
WHERE(f16, u16)
WHERE(bf16, u16)
WHERE(i32, u32)
WHERE(i64, u64)
WHERE(u8, u8)
WHERE(bool, u8)
