// Elements in memory. A kernel computes in W, and loads and stores by functions for W and the type T that elements are stored as. It is compiled for one T of
// each W: the kernel for another T is the same but for these functions, which are pasted when it is needed (kernel_ptx.rs).
#pragma once

#include "number.cuh"

template <class W, class T> struct Elements;

#define ELEMENTS(W, T)                                                                                        \
    extern "C" __device__ __noinline__ W load_##W##_##T(const void *base, i64 index) {                        \
        __builtin_assume(__isGlobal(base));                                                                   \
        return (W)wide(((const T *)base)[index]);                                                             \
    }                                                                                                         \
    extern "C" __device__ __noinline__ void store_##W##_##T(void *base, i64 index, W x) {                     \
        __builtin_assume(__isGlobal(base));                                                                   \
        ((T *)base)[index] = To<T>::from(x);                                                                  \
    }                                                                                                         \
    template <> struct Elements<W, T> {                                                                       \
        typedef W Type;                                                                                       \
        static __device__ __forceinline__ W load(const View &view, i64 index) {                               \
            return load_##W##_##T((const void *)view.base, index);                                            \
        }                                                                                                     \
        static __device__ __forceinline__ void store(const View &view, i64 index, W x) {                      \
            store_##W##_##T((void *)view.base, index, x);                                                     \
        }                                                                                                     \
    };
