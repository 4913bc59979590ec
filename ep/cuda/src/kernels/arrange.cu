// What moves elements to other places, or works along one axis in its order: flip, tril, triu, cumsum, take_along_axis, scatter, scatter_add; and
// arange. What computes nothing has one kernel for each size of element.
#include "failure.cuh"
#include "number.cuh"

// Bit `axis` of `before` says that the axis is flipped.
template <class T> __device__ __forceinline__ void flip(const Arguments &arguments) {
    for (u64 element = first_thread(); element < arguments.elements; element += all_threads()) {
        u64 index = element;
        i64 from = 0, to = 0;
#pragma unroll 1
        for (u32 axis = arguments.rank; axis > 0;) {
            --axis;
            // The outermost needs no division.
            u64 next = axis > 0 ? index / (u64)arguments.shape[axis] : 0;
            i64 here = (i64)(index - next * (u64)arguments.shape[axis]);
            i64 own = arguments.before >> axis & 1 ? arguments.shape[axis] - 1 - here : here;
            from += own * arguments.views[0].strides[axis];
            to += here * arguments.views[1].strides[axis];
            index = next;
        }
        at<T>(arguments.views[1])[to] = at<const T>(arguments.views[0])[from];
    }
}

// The outer axes are those of the matrices, the inner ones rows and columns; `counter` is the diagonal.
template <class T, bool LOWER> __device__ __forceinline__ void triangle(const Arguments &arguments) {
    u64 rows = (u64)arguments.inner[0], columns = (u64)arguments.inner[1];
    u64 elements = arguments.elements * rows * columns;
    i64 diagonal = (i64)arguments.counter;
    const i64 *from = arguments.views[0].strides + arguments.rank, *to = arguments.views[1].strides + arguments.rank;
    for (u64 element = first_thread(); element < elements; element += all_threads()) {
        u64 line = element / columns;
        i64 column = (i64)(element - line * columns);
        u64 matrix = line / rows;
        i64 row = (i64)(line - matrix * rows);
        i64 offsets[2];
        place(arguments, matrix, offsets);
        bool kept = LOWER ? column - row <= diagonal : column - row >= diagonal;
        T element_there = (T)0;
        if (kept) element_there = at<const T>(arguments.views[0])[offsets[0] + row * from[0] + column * from[1]];
        at<T>(arguments.views[1])[offsets[1] + row * to[0] + column * to[1]] = element_there;
    }
}

// What sums of T are kept in, as by the CPU kernel.
template <class T> struct RunningOf { typedef Wide<T> type; };
template <> struct RunningOf<f32> { typedef f64 type; };

template <class W> __device__ __forceinline__ W plus(W x, W y) { return (W)((Unsigned<W>)x + (Unsigned<W>)y); }

// A thread for each row along the axis, which is the inner one: the order of a sum is that of a CPU.
template <class T> __device__ __forceinline__ void cumsum(const Arguments &arguments) {
    typedef typename RunningOf<T>::type Running;
    i64 length = arguments.inner[0];
    i64 from = arguments.views[0].strides[arguments.rank], to = arguments.views[1].strides[arguments.rank];
    for (u64 row = first_thread(); row < arguments.elements; row += all_threads()) {
        i64 offsets[2];
        place(arguments, row, offsets);
        Running sum = 0;
#pragma unroll 1
        for (i64 step = 0; step < length; ++step) {
            Running element = (Running)wide(at<const T>(arguments.views[0])[offsets[0] + step * from]);
            // The first as it is: 0 and a negative zero would give 0.
            sum = step == 0 ? element : plus(sum, element);
            at<T>(arguments.views[1])[offsets[1] + step * to] = To<T>::from(sum);
        }
    }
}

// The index at this offset of the second view. `before` is its bytes, by which its dtype is known: u8, i32 or i64.
__device__ __forceinline__ i64 index_at(const Arguments &arguments, i64 offset) {
    if (arguments.before == 1) return (i64)at<const u8>(arguments.views[1])[offset];
    if (arguments.before == 4) return (i64)at<const i32>(arguments.views[1])[offset];
    return at<const i64>(arguments.views[1])[offset];
}

// Reports the index of a row, at a place of the axis, that is past it: by its row-major number among the indices, so that the first one is found that a CPU
// would tell of. `counter` is how many rows differ only in axes behind the axis.
__device__ __forceinline__ void tell_index(const Arguments &arguments, u64 row, i64 step) {
    u64 count = (u64)arguments.inner[1], behind = arguments.counter, before = row / behind;
    tell_value_of(arguments, (before * count + (u64)step) * behind + (row - before * behind), [&](u64 smallest) {
        u64 line = smallest / behind, first = line / count;
        i64 there[2];
        place(arguments, first * behind + (smallest - line * behind), there);
        return index_at(arguments, there[1] + (i64)(line - first * count) * arguments.views[1].strides[arguments.rank]);
    });
}

// The outer axes are all but one, the inner sizes those of that axis in the first view and in the indices. If the planner says `across`, neighbouring threads
// have neighbouring rows, else neighbouring indices of a row.
template <class T> __device__ __forceinline__ void take_along_axis(const Arguments &arguments) {
    i64 size = arguments.inner[0];
    u64 rows = arguments.elements, count = (u64)arguments.inner[1];
    bool across = arguments.across != 0;
    i64 steps[3];
#pragma unroll
    for (int view = 0; view < 3; ++view) steps[view] = arguments.views[view].strides[arguments.rank];
    for (u64 element = first_thread(); element < rows * count; element += all_threads()) {
        u64 size_of_inner = across ? rows : count;
        u64 outer = element / size_of_inner, inner = element - outer * size_of_inner;
        u64 row = across ? inner : outer;
        i64 step = (i64)(across ? outer : inner);
        i64 offsets[3];
        place(arguments, row, offsets);
        i64 index = index_at(arguments, offsets[1] + step * steps[1]);
        if (index < 0 || index >= size) {
            tell_index(arguments, row, step);
            continue;
        }
        at<T>(arguments.views[2])[offsets[2] + step * steps[2]] = at<const T>(arguments.views[0])[offsets[0] + index * steps[0]];
    }
}

// A thread for each row along the axis, of axes as above: the order in which elements come to one place is that of a CPU. F makes the new element of the one
// that is there and that of the source.
template <class T, class F> __device__ __forceinline__ void scatter(const Arguments &arguments) {
    i64 size = arguments.inner[0], count = arguments.inner[1];
    i64 steps[4];
#pragma unroll
    for (int view = 0; view < 4; ++view) steps[view] = arguments.views[view].strides[arguments.rank];
    for (u64 row = first_thread(); row < arguments.elements; row += all_threads()) {
        i64 offsets[4];
        place(arguments, row, offsets);
        T *to = at<T>(arguments.views[3]) + offsets[3];
#pragma unroll 1
        for (i64 step = 0; step < size; ++step) to[step * steps[3]] = at<const T>(arguments.views[0])[offsets[0] + step * steps[0]];
#pragma unroll 1
        for (i64 step = 0; step < count; ++step) {
            i64 index = index_at(arguments, offsets[1] + step * steps[1]);
            if (index < 0 || index >= size) {
                tell_index(arguments, row, step);
                continue;
            }
            T &there = to[index * steps[3]];
            there = F::join(there, at<const T>(arguments.views[2])[offsets[2] + step * steps[2]]);
        }
    }
}

template <class T> struct Put {
    static __device__ __forceinline__ T join(T, T element) { return element; }
};
template <class T> struct PutSum {
    static __device__ __forceinline__ T join(T there, T element) { return To<T>::from(plus(wide(there), wide(element))); }
};

// Element `index` of the numbers from `value` on, by `counter` each.
template <class T, bool FLOAT> struct Sequence {
    static __device__ __forceinline__ T at_index(const Arguments &arguments, u64 index) {
        return To<T>::from(f64_of(arguments.value) + (f64)index * f64_of(arguments.counter));
    }
};
template <class T> struct Sequence<T, false> {
    static __device__ __forceinline__ T at_index(const Arguments &arguments, u64 index) {
        return (T)(arguments.value + index * arguments.counter);
    }
};

template <class T, bool FLOAT> __device__ __forceinline__ void arange(const Arguments &arguments) {
    for (u64 element = first_thread(); element < arguments.elements; element += all_threads()) {
        i64 offsets[1];
        place(arguments, element, offsets);
        at<T>(arguments.views[0])[offsets[0]] = Sequence<T, FLOAT>::at_index(arguments, element);
    }
}

#define OF_SIZE(bytes, type)                                                    \
    KERNEL(sv_flip_##bytes) { flip<type>(arguments); }                          \
    KERNEL(sv_tril_##bytes) { triangle<type, true>(arguments); }                \
    KERNEL(sv_triu_##bytes) { triangle<type, false>(arguments); }               \
    KERNEL(sv_take_along_axis_##bytes) { take_along_axis<type>(arguments); }    \
    KERNEL(sv_scatter_##bytes) { scatter<type, Put<type>>(arguments); }

OF_SIZE(1, u8)
OF_SIZE(2, u16)
OF_SIZE(4, u32)
OF_SIZE(8, u64)

#define OF_NUMBERS(type, is_float)                                            \
    KERNEL(sv_cumsum_##type) { cumsum<type>(arguments); }                     \
    KERNEL(sv_scatter_add_##type) { scatter<type, PutSum<type>>(arguments); } \
    KERNEL(sv_arange_##type) { arange<type, is_float>(arguments); }

OF_NUMBERS(f32, true)
OF_NUMBERS(f64, true)
OF_NUMBERS(f16, true)
OF_NUMBERS(bf16, true)
OF_NUMBERS(i8, false)
OF_NUMBERS(i16, false)
OF_NUMBERS(i32, false)
OF_NUMBERS(i64, false)
OF_NUMBERS(u8, false)
OF_NUMBERS(u16, false)
OF_NUMBERS(u32, false)
OF_NUMBERS(u64, false)
