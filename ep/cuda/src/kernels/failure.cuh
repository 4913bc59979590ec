// How a kernel reports the elements for which it has no result.
#pragma once

#include "abi.cuh"

// Reports that there is no result at `index`: the smallest index stays.
__device__ __forceinline__ Status *tell(const Arguments &arguments, u64 index) {
    Status *status = (Status *)arguments.status;
    if (status != 0) atomicMin(&status->index, index);
    return status;
}

// As `tell`, with the value at that index. A thread that lowers the index writes its value, and again if the index has been lowered meanwhile: the last thread
// to write has seen the smallest index, or looks once more. The fence between the two lets a test come between.
template <class F> __device__ __forceinline__ void tell_value_of(const Arguments &arguments, u64 index, F value) {
    Status *status = tell(arguments, index);
    if (status == 0) return;
    volatile Status *shown = status;
    u64 smallest;
    do {
        __threadfence();
        smallest = shown->index;
        i64 there = value(smallest);
        __threadfence();
        shown->value = there;
        __threadfence();
    } while (shown->index != smallest);
}

// The value is the element of the second view, of dtype T.
template <class T> __device__ __forceinline__ void tell_value(const Arguments &arguments, u64 index) {
    tell_value_of(arguments, index, [&](u64 smallest) {
        i64 offsets[2];
        place(arguments, smallest, offsets);
        return (i64)at<const T>(arguments.views[1])[offsets[1]];
    });
}
