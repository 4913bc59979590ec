// What the source of a fused kernel uses: a kernel that computes several elementwise steps of a program, made when the program is
// compiled (fused/source.rs). Each element is computed from those at its own index by the functions of the shipped kernels, in the
// order of the steps. So the results are those of the steps one by one, as long as the compiler contracts nothing (`--fmad=false`).
#pragma once

#include "binary.cuh"
#include "cast.cuh"
#include "compare.cuh"
#include "unary.cuh"

// Each op as a function, by the name of its kernel. A bool is a byte here.
#define OF(op, name, type) \
    __device__ __forceinline__ type name##_##type(type x) { return op<type>::apply(x); }
EACH_UNARY(OF)
#undef OF
__device__ __forceinline__ u8 not_bool(u8 x) { return Not::apply(x); }

#define OF(op, name, type) \
    __device__ __forceinline__ u8 name##_##type(type x) { return op<type>::apply(x); }
EACH_PREDICATE(OF)
#undef OF

#define OF(op, name, four, type) \
    __device__ __forceinline__ type name##_##type(type x, type y) { return stored<type, op<Wide<type>>>(x, y); }
EACH_BINARY(OF)
#undef OF
#define OF(op, name) \
    __device__ __forceinline__ u8 name(u8 x, u8 y) { return stored<u8, op<u8>>(x, y); }
EACH_BINARY_OF_BOOL(OF)
#undef OF

#define OF(op, name, type) \
    __device__ __forceinline__ type name##_##type(type x, type y, type z) { return op<type>::apply(x, y, z); }
EACH_TERNARY(OF)
#undef OF

#define OF(op, name, dtype, type) \
    __device__ __forceinline__ u8 name##_##dtype(type x, type y) { return op<type>::apply(x, y); }
EACH_COMPARISON(OF)
#undef OF

template <class T> __device__ __forceinline__ T of_byte(T x) { return x; }
__device__ __forceinline__ u8 of_byte(boolean x) { return x.byte; }
template <class T> struct InRegister { typedef T type; };
template <> struct InRegister<boolean> { typedef u8 type; };
template <class T> using Register = typename InRegister<T>::type;

#define OF(from, to, a, o)                                             \
    __device__ __forceinline__ Register<o> cast_##from##_##to(Register<a> x) { \
        return of_byte(Cast<a, o>::apply(a{x}));                       \
    }
EACH_CAST(OF)
#undef OF

#define WHERE(dtype, type) \
    __device__ __forceinline__ type where_##dtype(u8 condition, type x, type y) { return Pick<type>::apply(condition, x, y); }
WHERE(f32, f32)
WHERE(f64, f64)
WHERE(f16, f16)
WHERE(bf16, bf16)
WHERE(i8, i8)
WHERE(i16, i16)
WHERE(i32, i32)
WHERE(i64, i64)
WHERE(u8, u8)
WHERE(u16, u16)
WHERE(u32, u32)
WHERE(u64, u64)
WHERE(bool, u8)
#undef WHERE

// The element with these bits.
template <class T> __device__ __forceinline__ T constant(u64 bits) {
    T x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

template <class T> struct One {
    T of[1];
};

// One element of each view, at any strides.
template <int N> struct OneEach {
    enum { COUNT = 1 };
    template <class T> using Values = One<T>;
    const FusedArguments<N> &arguments;
    i64 offsets[N];

    template <class T> __device__ __forceinline__ One<T> load(int view) const {
        return One<T>{{at<const T>(arguments.views[view])[offsets[view]]}};
    }
    template <class T> __device__ __forceinline__ void store(int view, One<T> values) const {
        at<T>(arguments.views[view])[offsets[view]] = values.of[0];
    }
};

// Four elements of each view that lie side by side, or four times the same one.
template <int N> struct FourEach {
    enum { COUNT = 4 };
    template <class T> using Values = Four<T>;
    const FusedArguments<N> &arguments;
    u64 four;

    template <class T> __device__ __forceinline__ Four<T> load(int view) const {
        return load_four<T>(arguments.views[view], four);
    }
    template <class T> __device__ __forceinline__ void store(int view, Four<T> values) const {
        at<Four<T>>(arguments.views[view])[four] = values;
    }
};

// STEPS computes the elements at one place; at four if FOUR, and the planner says so.
template <int N, bool FOUR, class STEPS> __device__ __forceinline__ void run_fused(const FusedArguments<N> &arguments) {
    u64 done = 0;
    if constexpr (FOUR) {
        if (arguments.vectors) {
            u64 fours = arguments.elements / 4;
            for (u64 four = first_thread(); four < fours; four += all_threads()) STEPS::run(FourEach<N>{arguments, four});
            done = fours * 4;
        }
    }
    for (u64 index = done + first_thread(); index < arguments.elements; index += all_threads()) {
        OneEach<N> each{arguments, {}};
        place(arguments, index, each.offsets);
        STEPS::run(each);
    }
}

#define FUSED_KERNEL(views, four)                                                                                    \
    extern "C" __global__ void __launch_bounds__(BLOCK) sv_fused(const __grid_constant__ FusedArguments<views> arguments) { \
        run_fused<views, four, Steps>(arguments);                                                                    \
    }
