// Losses of networks, and RMS norm: each row along the inner axis is shared by threads, as rows.cuh says.
#include "rows.cuh"

// The class of a row's target, or a negative number if it is none. Views: logits, targets.
template <int N> __device__ __forceinline__ i64 target_of(const Rows<N> &rows) {
    i64 target = at<const i64>(rows.arguments.views[1])[rows.offset(1, 0)];
    return target < (i64)rows.arguments.inner_elements ? target : -1;
}

// Results are rounded once, from f64.

// The logarithm of the sum of exponentials, less the logit of the target: zero if that is no class. Views: logits, targets, output.
template <class E, class O> __device__ __forceinline__ void cross_entropy(const Arguments &arguments) {
    Rows<3> rows(arguments);
    while (rows.next()) {
        typename E::Type largest = rows.template largest<E>();
        f64 log_sum = log(rows.template exponentials<E>(largest));
        // A thread without a row has no elements, and each row has one.
        if (rows.elements > 0 && rows.team.lane == 0) {
            i64 target = target_of(rows);
            f64 loss = 0;
            if (target >= 0) loss = log_sum + ((f64)largest - (f64)rows.template load<E>(0, (u64)target));
            rows.template store<O>(2, 0, loss);
        }
    }
}

// The softmax less 1 at the target, times the gradient of the loss: zeros if the target is no class. Views: logits, targets, gradient, output.
template <class E, class O> __device__ __forceinline__ void cross_entropy_backward(const Arguments &arguments) {
    Rows<4> rows(arguments);
    while (rows.next()) {
        typename E::Type largest = rows.template largest<E>();
        f64 sum = rows.template exponentials<E>(largest);
        if (rows.elements == 0) continue;
        i64 target = target_of(rows);
        f64 factor = (f64)rows.template load<E>(2, 0) / sum;
#pragma unroll 1
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            f64 power = (f64)exponential(rows.template load<E>(0, index) - largest);
            f64 less = (i64)index == target ? sum : 0;
            rows.template store<O>(3, index, target < 0 ? 0.0 : (power - less) * factor);
        }
    }
}

// Each row divided by the root of the mean of its squares, in f64, rounded once. Views: input, weight, output; `value` has the bits of epsilon.
template <class E> __device__ __forceinline__ void rms_norm(const Arguments &arguments) {
    f64 epsilon = f64_of(arguments.value);
    Rows<3> rows(arguments);
    while (rows.next()) {
        f64 squares = 0;
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            f64 x = (f64)rows.template load<E>(0, index);
            squares += x * x;
        }
        f64 scale = 1 / sqrt(rows.team.template join<Sum<f64>>(squares) / (f64)arguments.inner_elements + epsilon);
#pragma unroll 1
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            f64 x = (f64)rows.template load<E>(0, index), weight = (f64)rows.template load<E>(1, index);
            rows.template store<E>(2, index, x * scale * weight);
        }
    }
}

ELEMENTS(f32, f32)
ELEMENTS(f64, f64)
ELEMENTS(f64, f32)

#define OF_ROWS(W)                                                                                \
    LARGE_KERNEL(sv_cross_entropy_##W) { cross_entropy<Elements<W, W>, Elements<f64, W>>(arguments); }              \
    LARGE_KERNEL(sv_cross_entropy_backward_##W) { cross_entropy_backward<Elements<W, W>, Elements<f64, W>>(arguments); }
OF_ROWS(f32)
OF_ROWS(f64)
// All in f64.
LARGE_KERNEL(sv_rms_norm_f64) { rms_norm<Elements<f64, f64>>(arguments); }
