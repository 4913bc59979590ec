// What moves bits to other places and computes nothing: pad, one-hot, index_select. One kernel for each size of element does for all dtypes of it.
#include "failure.cuh"

// An axis whose sizes differ has margins.
template <class T> __device__ __forceinline__ void pad(const Arguments &arguments) {
    for (u64 element = first_thread(); element < arguments.elements; element += all_threads()) {
        u64 index = element;
        i64 from = 0, to = 0;
        bool inside = true;
#pragma unroll 1
        for (u32 axis = arguments.rank; axis > 0;) {
            --axis;
            // The outermost needs no division.
            u64 next = axis > 0 ? index / (u64)arguments.shape[axis] : 0;
            i64 here = (i64)(index - next * (u64)arguments.shape[axis]);
            i64 own = arguments.inner[axis] == arguments.shape[axis] ? here : here - (i64)arguments.before;
            inside = inside && own >= 0 && own < arguments.inner[axis];
            from += own * arguments.views[0].strides[axis];
            to += here * arguments.views[1].strides[axis];
            index = next;
        }
        at<T>(arguments.views[1])[to] = inside ? at<const T>(arguments.views[0])[from] : (T)arguments.value;
    }
}

// I is the dtype of the indices, O of the output; `value` has the bits of 1.
template <class I, class O> __device__ __forceinline__ void one_hot(const Arguments &arguments) {
    u64 classes = arguments.inner_elements;
    u64 elements = arguments.elements * classes;
    i64 step = arguments.views[1].strides[arguments.rank];
    for (u64 element = first_thread(); element < elements; element += all_threads()) {
        u64 row = element / classes;
        i64 which = (i64)(element - row * classes);
        i64 offsets[2];
        place(arguments, row, offsets);
        i64 index = (i64)at<const I>(arguments.views[0])[offsets[0]];
        at<O>(arguments.views[1])[offsets[1] + which * step] = index == which ? (O)arguments.value : (O)0;
    }
}

// I is the dtype of the indices. A row that the table does not have is reported, and not read.
template <class I, class T> __device__ __forceinline__ void index_select(const Arguments &arguments) {
    i64 rows = arguments.inner[0];
    u64 columns = (u64)arguments.inner[1];
    u64 elements = arguments.elements * columns;
    const i64 *from = arguments.views[0].strides;
    i64 step = arguments.views[2].strides[arguments.rank];
    for (u64 element = first_thread(); element < elements; element += all_threads()) {
        u64 which = element / columns;
        i64 column = (i64)(element - which * columns);
        i64 offsets[3];
        place(arguments, which, offsets);
        i64 row = (i64)at<const I>(arguments.views[1])[offsets[1]];
        if (row < 0 || row >= rows) {
            tell_value<I>(arguments, which);
            continue;
        }
        at<T>(arguments.views[2])[offsets[2] + column * step] = at<const T>(arguments.views[0])[row * from[0] + column * from[1]];
    }
}

#define OF_SIZE(bytes, type)                                      \
    KERNEL(sv_pad_##bytes) { pad<type>(arguments); } \
    KERNEL(sv_one_hot_i32_##bytes) { one_hot<i32, type>(arguments); } \
    KERNEL(sv_one_hot_i64_##bytes) { one_hot<i64, type>(arguments); } \
    KERNEL(sv_one_hot_u8_##bytes) { one_hot<u8, type>(arguments); } \
    KERNEL(sv_index_select_i32_##bytes) { index_select<i32, type>(arguments); } \
    KERNEL(sv_index_select_i64_##bytes) { index_select<i64, type>(arguments); } \
    KERNEL(sv_index_select_u8_##bytes) { index_select<u8, type>(arguments); }

OF_SIZE(1, u8)
OF_SIZE(2, u16)
OF_SIZE(4, u32)
OF_SIZE(8, u64)
