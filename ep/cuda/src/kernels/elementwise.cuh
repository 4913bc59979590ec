// One output element from the input elements at its own index. Where the planner says so, four elements at a time; the
// rest, or all, one by one at any strides. An element is read before the one at the same index is written, so that the
// output may be exactly the view of an input.
#pragma once

#include "number.cuh"

template <class T> struct __align__(sizeof(T) * 4 < 16 ? sizeof(T) * 4 : 16) Four {
    T of[4];
};

template <class T> __device__ __forceinline__ Four<T> load_four(const View &view, u64 four) {
    if (view.strides[0] != 0) return at<const Four<T>>(view)[four];
    T same = *at<const T>(view);
    return Four<T>{{same, same, same, same}};
}

__device__ __forceinline__ u64 first_thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 all_threads() { return (u64)gridDim.x * blockDim.x; }

template <class O> __device__ __forceinline__ void map0(const Arguments &arguments, O value) {
    u64 done = 0;
    if (arguments.vectors) {
        u64 fours = arguments.elements / 4;
        Four<O> values = {{value, value, value, value}};
        for (u64 four = first_thread(); four < fours; four += all_threads()) at<Four<O>>(arguments.views[0])[four] = values;
        done = fours * 4;
    }
    for (u64 index = done + first_thread(); index < arguments.elements; index += all_threads()) {
        i64 offsets[1];
        place(arguments, index, offsets);
        at<O>(arguments.views[0])[offsets[0]] = value;
    }
}

// F has a static `apply`, and FOUR, which is false if its code is long: then it is in the kernel once.
template <class A, class O, class F> __device__ __forceinline__ void map1(const Arguments &arguments) {
    u64 done = 0;
    if (F::FOUR && arguments.vectors) {
        u64 fours = arguments.elements / 4;
        for (u64 four = first_thread(); four < fours; four += all_threads()) {
            Four<A> x = load_four<A>(arguments.views[0], four);
            Four<O> y;
#pragma unroll
            for (int i = 0; i < 4; ++i) y.of[i] = F::apply(x.of[i]);
            at<Four<O>>(arguments.views[1])[four] = y;
        }
        done = fours * 4;
    }
    for (u64 index = done + first_thread(); index < arguments.elements; index += all_threads()) {
        i64 offsets[2];
        place(arguments, index, offsets);
        A x = at<const A>(arguments.views[0])[offsets[0]];
        at<O>(arguments.views[1])[offsets[1]] = F::apply(x);
    }
}

// Here `apply` also gets the row-major index, to tell of what fails.
template <class A, class O, class F> __device__ __forceinline__ void map2(const Arguments &arguments) {
    u64 done = 0;
    if (F::FOUR && arguments.vectors) {
        u64 fours = arguments.elements / 4;
        for (u64 four = first_thread(); four < fours; four += all_threads()) {
            Four<A> x = load_four<A>(arguments.views[0], four);
            Four<A> y = load_four<A>(arguments.views[1], four);
            Four<O> z;
#pragma unroll
            for (int i = 0; i < 4; ++i) z.of[i] = F::apply(arguments, x.of[i], y.of[i], four * 4 + i);
            at<Four<O>>(arguments.views[2])[four] = z;
        }
        done = fours * 4;
    }
    for (u64 index = done + first_thread(); index < arguments.elements; index += all_threads()) {
        i64 offsets[3];
        place(arguments, index, offsets);
        A x = at<const A>(arguments.views[0])[offsets[0]];
        A y = at<const A>(arguments.views[1])[offsets[1]];
        at<O>(arguments.views[2])[offsets[2]] = F::apply(arguments, x, y, index);
    }
}

template <class T> struct Pick {
    static __device__ __forceinline__ T apply(u8 condition, T x, T y) { return condition != 0 ? x : y; }
};

template <class A, class B, class F> __device__ __forceinline__ void map3(const Arguments &arguments) {
    u64 done = 0;
    if (arguments.vectors) {
        u64 fours = arguments.elements / 4;
        for (u64 four = first_thread(); four < fours; four += all_threads()) {
            Four<A> w = load_four<A>(arguments.views[0], four);
            Four<B> x = load_four<B>(arguments.views[1], four);
            Four<B> y = load_four<B>(arguments.views[2], four);
            Four<B> z;
#pragma unroll
            for (int i = 0; i < 4; ++i) z.of[i] = F::apply(w.of[i], x.of[i], y.of[i]);
            at<Four<B>>(arguments.views[3])[four] = z;
        }
        done = fours * 4;
    }
    for (u64 index = done + first_thread(); index < arguments.elements; index += all_threads()) {
        i64 offsets[4];
        place(arguments, index, offsets);
        A w = at<const A>(arguments.views[0])[offsets[0]];
        B x = at<const B>(arguments.views[1])[offsets[1]];
        B y = at<const B>(arguments.views[2])[offsets[2]];
        at<B>(arguments.views[3])[offsets[3]] = F::apply(w, x, y);
    }
}
