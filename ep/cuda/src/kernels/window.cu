// Convolutions, poolings and their gradients: one thread for each element of the output, which adds up or compares all that it is made from.
//
// The outer axes are those of the output, unmerged; the inner ones are the sizes that do not follow from them, as plan_window.rs writes them.
// `value` has the stride and the padding, `counter` the dilation and the number of groups, 16 bits each, height before width.
#include "number.cuh"

// One of the two axes that the window moves over.
struct Axis {
    u32 stride;
    u32 padding;
    u32 dilation;
    // Elements of the window, and of the axis on which a place is looked for.
    u32 window;
    u32 size;

    __device__ __forceinline__ Axis(const Arguments &arguments, int axis, int window_at, i64 size) {
        stride = (u32)(arguments.value >> (16 * axis)) & 0xffff;
        padding = (u32)(arguments.value >> (32 + 16 * axis)) & 0xffff;
        dilation = (u32)(arguments.counter >> (16 * axis)) & 0xffff;
        window = (u32)arguments.inner[window_at];
        this->size = (u32)size;
    }

    // Whether an element of the window at a position is over the input; then its place.
    __device__ __forceinline__ bool input(u32 position, u32 element, u32 &place) const {
        place = position * stride + element * dilation - padding;
        return place < size;
    }

    // Whether there is a position at which an element of the window is over this element of the input; then the position.
    __device__ __forceinline__ bool position(u32 input, u32 element, u32 &place) const {
        u32 padded = input + padding, shift = element * dilation;
        place = (padded - shift) / stride;
        return padded >= shift && place * stride == padded - shift && place < size;
    }
};

// The place of an element of the output on its four axes.
struct Place {
    u64 outer[2];
    u32 inner[2];

    __device__ __forceinline__ Place(const Arguments &arguments, u64 index) {
        u64 line = index / (u64)arguments.shape[3];
        inner[1] = (u32)(index - line * (u64)arguments.shape[3]);
        u64 plane = line / (u64)arguments.shape[2];
        inner[0] = (u32)(line - plane * (u64)arguments.shape[2]);
        outer[0] = plane / (u64)arguments.shape[1];
        outer[1] = plane - outer[0] * (u64)arguments.shape[1];
    }
};

template <class T>
__device__ __forceinline__ T &element(const View &view, u64 a, u64 b, u32 y, u32 x) {
    return at<T>(view)[(i64)a * view.strides[0] + (i64)b * view.strides[1] + (i64)y * view.strides[2] + (i64)x * view.strides[3]];
}

__device__ __forceinline__ u64 groups_of(const Arguments &arguments) { return arguments.counter >> 32; }

// Views: input, weight, output. Inner sizes: channels of a group, height and width of the window and of the input.
template <class T> __device__ __forceinline__ void conv2d(const Arguments &arguments) {
    Axis rows(arguments, 0, 1, arguments.inner[3]), columns(arguments, 1, 2, arguments.inner[4]);
    u64 channels = (u64)arguments.inner[0], outputs = (u64)arguments.shape[1] / groups_of(arguments);
    for (u64 index = first_thread(); index < arguments.elements; index += all_threads()) {
        Place to(arguments, index);
        u64 first = to.outer[1] / outputs * channels;
        Wide<T> sum = 0;
#pragma unroll 1
        for (u64 channel = 0; channel < channels; ++channel) {
#pragma unroll 1
            for (u32 i = 0; i < rows.window; ++i) {
                u32 y, x;
                if (!rows.input(to.inner[0], i, y)) continue;
#pragma unroll 1
                for (u32 j = 0; j < columns.window; ++j) {
                    if (!columns.input(to.inner[1], j, x)) continue;
                    sum += wide(element<const T>(arguments.views[0], to.outer[0], first + channel, y, x)) *
                           wide(element<const T>(arguments.views[1], to.outer[1], channel, i, j));
                }
            }
        }
        element<T>(arguments.views[2], to.outer[0], to.outer[1], to.inner[0], to.inner[1]) = To<T>::from(sum);
    }
}

// Views: input, which is not read, weight, gradient, output. Inner sizes: output channels of a group, height and width of the window and of the
// gradient.
template <class T> __device__ __forceinline__ void conv2d_backward_input(const Arguments &arguments) {
    Axis rows(arguments, 0, 1, arguments.inner[3]), columns(arguments, 1, 2, arguments.inner[4]);
    u64 outputs = (u64)arguments.inner[0], channels = (u64)arguments.shape[1] / groups_of(arguments);
    for (u64 index = first_thread(); index < arguments.elements; index += all_threads()) {
        Place to(arguments, index);
        u64 group = to.outer[1] / channels;
        u64 channel = to.outer[1] - group * channels;
        Wide<T> sum = 0;
#pragma unroll 1
        for (u64 output = group * outputs; output < (group + 1) * outputs; ++output) {
#pragma unroll 1
            for (u32 i = 0; i < rows.window; ++i) {
                u32 y, x;
                if (!rows.position(to.inner[0], i, y)) continue;
#pragma unroll 1
                for (u32 j = 0; j < columns.window; ++j) {
                    if (!columns.position(to.inner[1], j, x)) continue;
                    sum += wide(element<const T>(arguments.views[2], to.outer[0], output, y, x)) *
                           wide(element<const T>(arguments.views[1], output, channel, i, j));
                }
            }
        }
        element<T>(arguments.views[3], to.outer[0], to.outer[1], to.inner[0], to.inner[1]) = To<T>::from(sum);
    }
}

// Views: input, weight, which is not read, gradient, output. Inner sizes: images, height and width of the gradient and of the input.
template <class T> __device__ __forceinline__ void conv2d_backward_weight(const Arguments &arguments) {
    Axis rows(arguments, 0, 1, arguments.inner[3]), columns(arguments, 1, 2, arguments.inner[4]);
    u64 channels = (u64)arguments.shape[1], outputs = (u64)arguments.shape[0] / groups_of(arguments);
    for (u64 index = first_thread(); index < arguments.elements; index += all_threads()) {
        Place to(arguments, index);
        u64 channel = to.outer[0] / outputs * channels + to.outer[1];
        Wide<T> sum = 0;
#pragma unroll 1
        for (u64 image = 0; image < (u64)arguments.inner[0]; ++image) {
            // Here `window` is the height and the width of the gradient.
#pragma unroll 1
            for (u32 i = 0; i < rows.window; ++i) {
                u32 y, x;
                if (!rows.input(i, to.inner[0], y)) continue;
#pragma unroll 1
                for (u32 j = 0; j < columns.window; ++j) {
                    if (!columns.input(j, to.inner[1], x)) continue;
                    sum += wide(element<const T>(arguments.views[2], image, to.outer[0], i, j)) *
                           wide(element<const T>(arguments.views[0], image, channel, y, x));
                }
            }
        }
        element<T>(arguments.views[3], to.outer[0], to.outer[1], to.inner[0], to.inner[1]) = To<T>::from(sum);
    }
}

// The place of the first largest element under the window at a position; a NaN counts as the largest.
template <class T>
__device__ __forceinline__ void largest(const Arguments &arguments, const Axis &rows, const Axis &columns, const u64 *outer, u32 row,
                                        u32 column, u32 &best_y, u32 &best_x) {
    Wide<T> best = 0;
    bool found = false;
    u32 i = 0;
    // Here and below: a window has an element.
#pragma unroll 1
    do {
        u32 y, x, j = 0;
        if (!rows.input(row, i, y)) continue;
#pragma unroll 1
        do {
            if (!columns.input(column, j, x)) continue;
            Wide<T> here = wide(element<const T>(arguments.views[0], outer[0], outer[1], y, x));
            if (!found || here > best || (is_nan(here) && !is_nan(best))) {
                found = true;
                best = here;
                best_y = y;
                best_x = x;
            }
        } while (++j < columns.window);
    } while (++i < rows.window);
}

// Views: input, output. Inner sizes: height and width of the window and of the input.
template <class T> __device__ __forceinline__ void max_pool2d(const Arguments &arguments) {
    Axis rows(arguments, 0, 0, arguments.inner[2]), columns(arguments, 1, 1, arguments.inner[3]);
    for (u64 index = first_thread(); index < arguments.elements; index += all_threads()) {
        Place to(arguments, index);
        u32 y = 0, x = 0;
        largest<T>(arguments, rows, columns, to.outer, to.inner[0], to.inner[1], y, x);
        element<T>(arguments.views[1], to.outer[0], to.outer[1], to.inner[0], to.inner[1]) =
            element<const T>(arguments.views[0], to.outer[0], to.outer[1], y, x);
    }
}

template <class T> __device__ __forceinline__ void avg_pool2d(const Arguments &arguments) {
    Axis rows(arguments, 0, 0, arguments.inner[2]), columns(arguments, 1, 1, arguments.inner[3]);
    for (u64 index = first_thread(); index < arguments.elements; index += all_threads()) {
        Place to(arguments, index);
        f64 sum = 0;
        u32 i = 0;
#pragma unroll 1
        do {
            u32 y, x, j = 0;
            if (!rows.input(to.inner[0], i, y)) continue;
#pragma unroll 1
            do {
                if (!columns.input(to.inner[1], j, x)) continue;
                sum += (f64)wide(element<const T>(arguments.views[0], to.outer[0], to.outer[1], y, x));
            } while (++j < columns.window);
        } while (++i < rows.window);
        element<T>(arguments.views[1], to.outer[0], to.outer[1], to.inner[0], to.inner[1]) =
            To<T>::from(sum / ((f64)rows.window * (f64)columns.window));
    }
}

// Views: input, gradient, output. Inner sizes: height and width of the window and of the gradient; the input has the height and the width of the
// output, `shape[2]` and `shape[3]`. For each window over its element a thread tests whether the element is the largest of it.
template <class T> __device__ __forceinline__ void max_pool2d_backward(const Arguments &arguments) {
    Axis rows(arguments, 0, 0, arguments.inner[2]), columns(arguments, 1, 1, arguments.inner[3]);
    Axis inside_rows(arguments, 0, 0, arguments.shape[2]), inside_columns(arguments, 1, 1, arguments.shape[3]);
    for (u64 index = first_thread(); index < arguments.elements; index += all_threads()) {
        Place to(arguments, index);
        f64 sum = 0;
        // From the last element of the window on: the first position comes first.
        u32 i = rows.window;
#pragma unroll 1
        do {
            u32 row, column, j = columns.window;
            if (!rows.position(to.inner[0], --i, row)) continue;
#pragma unroll 1
            do {
                if (!columns.position(to.inner[1], --j, column)) continue;
                u32 y = 0, x = 0;
                largest<T>(arguments, inside_rows, inside_columns, to.outer, row, column, y, x);
                if (y == to.inner[0] && x == to.inner[1]) {
                    sum += (f64)wide(element<const T>(arguments.views[1], to.outer[0], to.outer[1], row, column));
                }
            } while (j > 0);
        } while (i > 0);
        element<T>(arguments.views[2], to.outer[0], to.outer[1], to.inner[0], to.inner[1]) = To<T>::from(sum);
    }
}

// Views: input, which is not read, gradient, output. Inner sizes: height and width of the window and of the gradient.
template <class T> __device__ __forceinline__ void avg_pool2d_backward(const Arguments &arguments) {
    Axis rows(arguments, 0, 0, arguments.inner[2]), columns(arguments, 1, 1, arguments.inner[3]);
    for (u64 index = first_thread(); index < arguments.elements; index += all_threads()) {
        Place to(arguments, index);
        f64 sum = 0;
        u32 i = rows.window;
#pragma unroll 1
        do {
            u32 row, column, j = columns.window;
            if (!rows.position(to.inner[0], --i, row)) continue;
#pragma unroll 1
            do {
                if (!columns.position(to.inner[1], --j, column)) continue;
                sum += (f64)wide(element<const T>(arguments.views[1], to.outer[0], to.outer[1], row, column));
            } while (j > 0);
        } while (i > 0);
        element<T>(arguments.views[2], to.outer[0], to.outer[1], to.inner[0], to.inner[1]) =
            To<T>::from(sum / ((f64)rows.window * (f64)columns.window));
    }
}

#define WINDOW(type)                                                                          \
    KERNEL(sv_conv2d_##type) { conv2d<type>(arguments); }                                     \
    KERNEL(sv_conv2d_backward_input_##type) { conv2d_backward_input<type>(arguments); }       \
    KERNEL(sv_conv2d_backward_weight_##type) { conv2d_backward_weight<type>(arguments); }     \
    KERNEL(sv_max_pool2d_##type) { max_pool2d<type>(arguments); }                             \
    KERNEL(sv_avg_pool2d_##type) { avg_pool2d<type>(arguments); }                             \
    KERNEL(sv_max_pool2d_backward_##type) { max_pool2d_backward<type>(arguments); }           \
    KERNEL(sv_avg_pool2d_backward_##type) { avg_pool2d_backward<type>(arguments); }

WINDOW(f32)
WINDOW(f64)
WINDOW(f16)
WINDOW(bf16)
