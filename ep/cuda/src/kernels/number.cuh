// Elements: what they are stored as, what they are computed in, and how they become each other. As in the CPU kernels:
// integers wrap, floats become integers by cutting off and saturating (NaN gives 0), and a 16-bit float is computed in f32
// and rounded once, to the nearest with ties to even.
#pragma once

#include "abi.cuh"

struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};
// One byte, 0 or 1.
struct boolean {
    u8 byte;
};

#ifdef __CUDACC__
__device__ __forceinline__ f32 f16_to_f32(u16 bits) {
    f32 wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
    return wide;
}
__device__ __forceinline__ u16 f32_to_f16(f32 wide) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(wide));
    return bits;
}
__device__ __forceinline__ u32 bits_of(f32 x) { return __float_as_uint(x); }
__device__ __forceinline__ f32 f32_of(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ f64 f64_of(u64 bits) { return __longlong_as_double((i64)bits); }
#endif

// The type that elements stored as T are computed in.
template <class T> struct WideOf { typedef T type; };
template <> struct WideOf<f16> { typedef f32 type; };
template <> struct WideOf<bf16> { typedef f32 type; };
template <> struct WideOf<boolean> { typedef u8 type; };
template <class T> using Wide = typename WideOf<T>::type;

// What wraps. A product of two u16 would be one of int, which must not overflow.
template <class T> struct UnsignedOf { typedef T type; };
template <> struct UnsignedOf<i8> { typedef u32 type; };
template <> struct UnsignedOf<i16> { typedef u32 type; };
template <> struct UnsignedOf<u16> { typedef u32 type; };
template <> struct UnsignedOf<i32> { typedef u32 type; };
template <> struct UnsignedOf<i64> { typedef u64 type; };
template <class T> using Unsigned = typename UnsignedOf<T>::type;

template <class T> __device__ __forceinline__ T wide(T x) { return x; }
__device__ __forceinline__ f32 wide(f16 x) { return f16_to_f32(x.bits); }
__device__ __forceinline__ f32 wide(bf16 x) { return f32_of((u32)x.bits << 16); }
__device__ __forceinline__ u8 wide(boolean x) { return x.byte != 0; }

template <class T> __device__ __forceinline__ bool is_nan(T x) { return x != x; }

// The largest and the smallest integer, and the first float that is too large.
template <class I> struct Range;
template <> struct Range<i8> {
    static __device__ __forceinline__ i8 lowest() { return -128; }
    static __device__ __forceinline__ i8 highest() { return 127; }
    static __device__ __forceinline__ f64 end() { return 128.0; }
};
template <> struct Range<i16> {
    static __device__ __forceinline__ i16 lowest() { return -32768; }
    static __device__ __forceinline__ i16 highest() { return 32767; }
    static __device__ __forceinline__ f64 end() { return 32768.0; }
};
template <> struct Range<i32> {
    static __device__ __forceinline__ i32 lowest() { return (i32)0x80000000u; }
    static __device__ __forceinline__ i32 highest() { return 0x7fffffff; }
    static __device__ __forceinline__ f64 end() { return 2147483648.0; }
};
template <> struct Range<i64> {
    static __device__ __forceinline__ i64 lowest() { return (i64)0x8000000000000000ull; }
    static __device__ __forceinline__ i64 highest() { return 0x7fffffffffffffffll; }
    static __device__ __forceinline__ f64 end() { return 9223372036854775808.0; }
};
template <> struct Range<u8> {
    static __device__ __forceinline__ u8 lowest() { return 0; }
    static __device__ __forceinline__ u8 highest() { return 255; }
    static __device__ __forceinline__ f64 end() { return 256.0; }
};
template <> struct Range<u16> {
    static __device__ __forceinline__ u16 lowest() { return 0; }
    static __device__ __forceinline__ u16 highest() { return 65535; }
    static __device__ __forceinline__ f64 end() { return 65536.0; }
};
template <> struct Range<u32> {
    static __device__ __forceinline__ u32 lowest() { return 0; }
    static __device__ __forceinline__ u32 highest() { return 0xffffffffu; }
    static __device__ __forceinline__ f64 end() { return 4294967296.0; }
};
template <> struct Range<u64> {
    static __device__ __forceinline__ u64 lowest() { return 0; }
    static __device__ __forceinline__ u64 highest() { return 0xffffffffffffffffull; }
    static __device__ __forceinline__ f64 end() { return 18446744073709551616.0; }
};
template <> struct Range<f32> {
    static __device__ __forceinline__ f32 lowest() { return f32_of(0xff800000u); }
    static __device__ __forceinline__ f32 highest() { return f32_of(0x7f800000u); }
};
template <> struct Range<f64> {
    static __device__ __forceinline__ f64 lowest() { return (f64)f32_of(0xff800000u); }
    static __device__ __forceinline__ f64 highest() { return (f64)f32_of(0x7f800000u); }
};

template <class I, class F> __device__ __forceinline__ I saturated(F x) {
    if (is_nan(x)) return 0;
    if (x <= (F)Range<I>::lowest()) return Range<I>::lowest();
    if (x >= (F)Range<I>::end()) return Range<I>::highest();
    return Range<I>::lowest() == 0 ? (I)(u64)x : (I)(i64)x;
}

// The bf16 nearest to `x`, ties to even; a NaN stays one.
__device__ __forceinline__ bf16 nearest_bf16(f32 x) {
    u32 bits = bits_of(x);
    u32 rounded = is_nan(x) ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1);
    return bf16{(u16)(rounded >> 16)};
}

// A number rounded to odd, given the f32 nearest to it and how that compares with it in size: rounding the result to a
// type of two bits less is rounding the number (Boldo and Melquiond, "When double rounding is odd", 2005).
__device__ __forceinline__ f32 odd(f32 near, bool smaller, bool larger) {
    u32 bits = bits_of(near);
    return smaller ? f32_of(bits | 1) : larger ? f32_of((bits - 1) | 1) : near;
}
__device__ __forceinline__ f32 to_odd(f32 x) { return x; }
__device__ __forceinline__ f32 to_odd(f64 x) {
    f32 near = (f32)x;
    f64 size = fabs((f64)near);
    return odd(near, size < fabs(x), size > fabs(x));
}
__device__ __forceinline__ f32 to_odd(i64 x) {
    f32 near = (f32)x;
    // At most 2^63, which u64 holds.
    u64 size = (u64)fabsf(near);
    u64 exact = x < 0 ? 0 - (u64)x : (u64)x;
    return odd(near, size < exact, size > exact);
}
__device__ __forceinline__ f32 to_odd(u64 x) {
    f32 near = (f32)x;
    // u64 does not hold it.
    if (near == 18446744073709551616.0f) return odd(near, false, true);
    return odd(near, (u64)near < x, (u64)near > x);
}
__device__ __forceinline__ f32 to_odd(i32 x) { return to_odd((i64)x); }
__device__ __forceinline__ f32 to_odd(u32 x) { return to_odd((i64)x); }
// Exact.
__device__ __forceinline__ f32 to_odd(i8 x) { return (f32)x; }
__device__ __forceinline__ f32 to_odd(i16 x) { return (f32)x; }
__device__ __forceinline__ f32 to_odd(u8 x) { return (f32)x; }
__device__ __forceinline__ f32 to_odd(u16 x) { return (f32)x; }

// `x`, of a type that is computed in, as an element to store.
template <class T> struct To {
    template <class W> static __device__ __forceinline__ T from(W x) { return (T)x; }
};
template <class I> struct ToInteger {
    static __device__ __forceinline__ I from(f32 x) { return saturated<I>(x); }
    static __device__ __forceinline__ I from(f64 x) { return saturated<I>(x); }
    template <class J> static __device__ __forceinline__ I from(J x) { return (I)x; }
};
template <> struct To<i8> : ToInteger<i8> {};
template <> struct To<i16> : ToInteger<i16> {};
template <> struct To<i32> : ToInteger<i32> {};
template <> struct To<i64> : ToInteger<i64> {};
template <> struct To<u8> : ToInteger<u8> {};
template <> struct To<u16> : ToInteger<u16> {};
template <> struct To<u32> : ToInteger<u32> {};
template <> struct To<u64> : ToInteger<u64> {};
template <> struct To<f16> {
    template <class W> static __device__ __forceinline__ f16 from(W x) { return f16{f32_to_f16(to_odd(x))}; }
};
template <> struct To<bf16> {
    template <class W> static __device__ __forceinline__ bf16 from(W x) { return nearest_bf16(to_odd(x)); }
};
template <> struct To<boolean> {
    template <class W> static __device__ __forceinline__ boolean from(W x) { return boolean{(u8)(x != (W)0)}; }
};
