// Reductions over the inner axes, argmax, argmin, softmax, log-softmax and their gradients, layer norm. Threads share outputs, or rows, as rows.cuh says.
#include "rows.cuh"

// What the kernels `sum` and `mean` fold: as Sum, but of f64 a sum of scaled elements goes along, which is taken where the plain one is no
// finite number. A sum on the way may be past the range although the result is not.
template <class T> struct Total : Sum<T> {};
template <> struct Total<f64> {
    struct State {
        f64 plain;
        f64 scaled;
    };
    // 2 to the power 64: no tensor has as many elements, and an element that loses bits by it is nothing beside a sum that overflowed.
    static __device__ __forceinline__ f64 scale() { return 18446744073709551616.0; }
    static __device__ __forceinline__ State start() { return State{0, 0}; }
    static __device__ __forceinline__ State join(State left, State right) {
        return State{left.plain + right.plain, left.scaled + right.scaled};
    }
    static __device__ __forceinline__ State step(State state, f64 element, u64) {
        return State{state.plain + element, state.scaled + element / scale()};
    }
    static __device__ __forceinline__ f64 over(State state, f64 count) {
        bool finite = !is_nan(state.plain - state.plain);
        return finite ? state.plain / count : state.scaled / count * scale();
    }
    static __device__ __forceinline__ f64 finish(State state, u64) { return over(state, 1); }
};

template <class T> struct Mean : Total<T> {
    typedef typename Total<T>::State State;
    static __device__ __forceinline__ T finish(State state, u64 count) { return To<T>::from(state / (State)count); }
};
template <> struct Mean<f64> : Total<f64> {
    static __device__ __forceinline__ f64 finish(State state, u64 count) { return over(state, (f64)count); }
};

template <class T> struct Smallest {
    typedef Wide<T> State;
    static __device__ __forceinline__ State start() { return Range<State>::highest(); }
    static __device__ __forceinline__ State join(State x, State y) { return x < y || is_nan(x) ? x : y; }
    static __device__ __forceinline__ State step(State state, T element, u64) { return join(state, wide(element)); }
    static __device__ __forceinline__ T finish(State state, u64) { return To<T>::from(state); }
};

// Kept in what sums of a dtype are kept in on a CPU; integers wrap.
template <class T> struct ProductOf { typedef Wide<T> type; };
template <> struct ProductOf<f32> { typedef f64 type; };
template <class T> struct Prod {
    typedef typename ProductOf<T>::type State;
    static __device__ __forceinline__ State start() { return 1; }
    static __device__ __forceinline__ State join(State x, State y) { return (State)((Unsigned<State>)x * (Unsigned<State>)y); }
    static __device__ __forceinline__ State step(State state, T element, u64) { return join(state, (State)wide(element)); }
    static __device__ __forceinline__ T finish(State state, u64) { return To<T>::from(state); }
};

// Count, mean, and sum of the squares of the differences to it: one more element by Welford (1962), two lots by Chan, Golub and LeVeque (1979).
template <class T> struct Moments {
    struct State {
        f64 count;
        f64 mean;
        f64 squares;
    };
    static __device__ __forceinline__ State start() { return State{0, 0, 0}; }
    static __device__ __forceinline__ State join(State x, State y) {
        if (y.count == 0) return x;
        if (x.count == 0) return y;
        f64 count = x.count + y.count;
        f64 apart = y.mean - x.mean;
        f64 between = apart * apart * (x.count * (y.count / count));
        return State{count, x.mean + apart * (y.count / count), x.squares + y.squares + between};
    }
    static __device__ __forceinline__ State step(State state, T element, u64) {
        f64 x = (f64)wide(element), count = state.count + 1;
        f64 before = x - state.mean;
        f64 mean = state.mean + before / count;
        return State{count, mean, state.squares + before * (x - mean)};
    }
};
template <class T> struct Var : Moments<T> {
    static __device__ __forceinline__ T finish(typename Moments<T>::State state, u64) { return To<T>::from(state.squares / state.count); }
};
template <class T> struct Std : Moments<T> {
    static __device__ __forceinline__ T finish(typename Moments<T>::State state, u64) { return To<T>::from(sqrt(state.squares / state.count)); }
};

// Of bools, which are bytes here.
struct Any {
    typedef u8 State;
    static __device__ __forceinline__ State start() { return 0; }
    static __device__ __forceinline__ State join(State x, State y) { return x | y; }
    static __device__ __forceinline__ State step(State state, u8 element, u64) { return state | element; }
    static __device__ __forceinline__ u8 finish(State state, u64) { return state; }
};
struct All {
    typedef u8 State;
    static __device__ __forceinline__ State start() { return 1; }
    static __device__ __forceinline__ State join(State x, State y) { return x & y; }
    static __device__ __forceinline__ State step(State state, u8 element, u64) { return state & element; }
    static __device__ __forceinline__ u8 finish(State state, u64) { return state; }
};

// The first of the largest, or of the smallest; a NaN counts as the one that is looked for.
template <class T, bool LARGEST> struct ArgExtreme {
    struct State {
        Wide<T> extreme;
        i64 index;
    };
    // Behind every element: of equal ones, the one with the smaller index is taken.
    static __device__ __forceinline__ State start() {
        return State{LARGEST ? Range<Wide<T>>::lowest() : Range<Wide<T>>::highest(), 0x7fffffffffffffff};
    }
    static __device__ __forceinline__ State join(State x, State y) {
        bool x_nan = is_nan(x.extreme), y_nan = is_nan(y.extreme);
        if (x_nan != y_nan) return x_nan ? x : y;
        if (!x_nan && x.extreme != y.extreme) return (x.extreme > y.extreme) == LARGEST ? x : y;
        return x.index < y.index ? x : y;
    }
    static __device__ __forceinline__ State step(State state, T element, u64 index) {
        return join(state, State{wide(element), (i64)index});
    }
    static __device__ __forceinline__ i64 finish(State state, u64) { return state.index; }
};

// One of three passes, which `before` names. A whole reduction folds all elements of its outputs. FOLD folds a part of the elements of each output, the part of
// the block's place along y, and stores the state in the second view: as many states as outputs, part by part. JOIN loads these states from the first view,
// one for each lane, and joins them. A part may be empty.
template <class T, class O, class F> __device__ __forceinline__ void reduce(const Arguments &arguments) {
    typedef typename F::State State;
    Team team(arguments);
    u64 outputs = arguments.elements;
    u64 begin = blockIdx.y * arguments.value;
    u64 end = arguments.inner_elements;
    if (arguments.before == FOLD && begin + arguments.value < end) end = begin + arguments.value;
    u64 rounds = (outputs + team.teams - 1) / team.teams;
    for (u64 round = blockIdx.x; round < rounds; round += gridDim.x) {
        u64 output = round * team.teams + team.team;
        i64 offsets[2] = {0, 0};
        State state = F::start();
        if (output < outputs) {
            place(arguments, output, offsets);
            if (arguments.before == JOIN) {
                if (team.lane < arguments.counter) state = at<const State>(arguments.views[0])[team.lane * outputs + output];
            } else {
                const T *first = at<const T>(arguments.views[0]) + offsets[0];
                u64 index = begin + team.lane, lanes = team.lanes;
                // Along one axis, four elements are loaded before the first of them is folded.
                if (arguments.inner_rank < 2) {
                    i64 stride = arguments.views[0].strides[arguments.rank];
#pragma unroll 1
                    for (; index + 3 * lanes < end; index += 4 * lanes) {
                        T elements[4];
#pragma unroll
                        for (int i = 0; i < 4; ++i) elements[i] = first[(i64)(index + i * lanes) * stride];
#pragma unroll
                        for (int i = 0; i < 4; ++i) state = F::step(state, elements[i], index + i * lanes);
                    }
                }
#pragma unroll 1
                for (; index < end; index += lanes) state = F::step(state, first[inner_place(arguments, index)], index);
            }
        }
        state = team.join<F>(state);
        if (output < outputs && team.lane == 0) {
            if (arguments.before == FOLD) {
                at<State>(arguments.views[1])[blockIdx.y * outputs + output] = state;
            } else {
                at<O>(arguments.views[1])[offsets[1]] = F::finish(state, arguments.inner_elements);
            }
        }
    }
}

// The largest element of a row is subtracted first, so that no exponential overflows. Sums are kept in f64.
template <class T> __device__ __forceinline__ void softmax(const Arguments &arguments) {
    Rows<2> rows(arguments);
    while (rows.next()) {
        Wide<T> largest = rows.template largest<T>();
        Wide<T> total = (Wide<T>)rows.template exponentials<T>(largest);
#pragma unroll 1
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            Wide<T> x = wide(rows.template of<const T>(0, index));
            rows.template of<T>(1, index) = To<T>::from(exponential(x - largest) / total);
        }
    }
}

template <class T> __device__ __forceinline__ void log_softmax(const Arguments &arguments) {
    Rows<2> rows(arguments);
    while (rows.next()) {
        Wide<T> largest = rows.template largest<T>();
        Wide<T> total = (Wide<T>)log(rows.template exponentials<T>(largest));
#pragma unroll 1
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            Wide<T> x = wide(rows.template of<const T>(0, index));
            rows.template of<T>(1, index) = To<T>::from(x - largest - total);
        }
    }
}

// Gradients: the first operand is what was given, the second the gradient of that. A difference that may cancel is made in
// f64.
template <class T> __device__ __forceinline__ void softmax_backward(const Arguments &arguments) {
    typedef Wide<T> W;
    Rows<3> rows(arguments);
    while (rows.next()) {
        f64 sum = 0;
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            f64 y = (f64)wide(rows.template of<const T>(0, index));
            sum += y * (f64)wide(rows.template of<const T>(1, index));
        }
        sum = rows.team.template join<Sum<f64>>(sum);
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            W y = wide(rows.template of<const T>(0, index));
            W less = (W)((f64)wide(rows.template of<const T>(1, index)) - sum);
            rows.template of<T>(2, index) = To<T>::from(y * less);
        }
    }
}

template <class T> __device__ __forceinline__ void log_softmax_backward(const Arguments &arguments) {
    typedef Wide<T> W;
    Rows<3> rows(arguments);
    while (rows.next()) {
        f64 sum = 0;
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            sum += (f64)wide(rows.template of<const T>(1, index));
        }
        sum = rows.team.template join<Sum<f64>>(sum);
#pragma unroll 1
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            f64 probability = (f64)exponential(wide(rows.template of<const T>(0, index)));
            f64 dy = (f64)wide(rows.template of<const T>(1, index));
            rows.template of<T>(2, index) = To<T>::from((W)(dy - probability * sum));
        }
    }
}

// Mean and variance of each row, and the elements scaled by them, in f64, rounded once. The operands are the input, the weight and the
// bias, and the output; `value` has the bits of epsilon.
template <class T> __device__ __forceinline__ void layer_norm(const Arguments &arguments) {
    f64 epsilon = f64_of(arguments.value);
    Rows<4> rows(arguments);
    while (rows.next()) {
        f64 count = (f64)arguments.inner_elements;
        f64 sum = 0;
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            sum += (f64)wide(rows.template of<const T>(0, index));
        }
        f64 mean = rows.team.template join<Sum<f64>>(sum) / count;
        f64 squares = 0;
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            f64 away = (f64)wide(rows.template of<const T>(0, index)) - mean;
            squares += away * away;
        }
        f64 scale = 1 / sqrt(rows.team.template join<Sum<f64>>(squares) / count + epsilon);
#pragma unroll 1
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            f64 away = (f64)wide(rows.template of<const T>(0, index)) - mean;
            f64 weight = (f64)wide(rows.template of<const T>(1, index)), bias = (f64)wide(rows.template of<const T>(2, index));
            rows.template of<T>(3, index) = To<T>::from(away * scale * weight + bias);
        }
    }
}

#define OF(op, name, type, stored) \
    LARGE_KERNEL(sv_##name##_##type) { reduce<stored, stored, op<stored>>(arguments); }
#define OF_FLOATS(op, name) \
    OF(op, name, f32, f32) OF(op, name, f64, f64) OF(op, name, f16, f16) OF(op, name, bf16, bf16)
#define OF_NUMBERS(op, name) \
    OF_FLOATS(op, name) \
    OF(op, name, i8, i8) OF(op, name, i16, i16) OF(op, name, i32, i32) OF(op, name, i64, i64) \
    OF(op, name, u8, u8) OF(op, name, u16, u16) OF(op, name, u32, u32) OF(op, name, u64, u64)
// A bool is compared as its byte.
#define OF_ALL(op, name) OF_NUMBERS(op, name) OF(op, name, bool, u8)

OF_NUMBERS(Total, sum)
OF_NUMBERS(Prod, prod)
OF_FLOATS(Mean, mean)
OF_FLOATS(Var, var)
OF_FLOATS(Std, std)
OF_ALL(Largest, reduce_max)
OF_ALL(Smallest, reduce_min)

LARGE_KERNEL(sv_any_bool) { reduce<u8, u8, Any>(arguments); }
LARGE_KERNEL(sv_all_bool) { reduce<u8, u8, All>(arguments); }

#define ARG_EXTREMES(type, stored) \
    LARGE_KERNEL(sv_argmax_##type) { reduce<stored, i64, ArgExtreme<stored, true>>(arguments); } \
    LARGE_KERNEL(sv_argmin_##type) { reduce<stored, i64, ArgExtreme<stored, false>>(arguments); }
#define SOFTMAX(type) \
    LARGE_KERNEL(sv_softmax_##type) { softmax<type>(arguments); } \
    LARGE_KERNEL(sv_log_softmax_##type) { log_softmax<type>(arguments); } \
    LARGE_KERNEL(sv_softmax_backward_##type) { softmax_backward<type>(arguments); } \
    LARGE_KERNEL(sv_log_softmax_backward_##type) { log_softmax_backward<type>(arguments); } \
    LARGE_KERNEL(sv_layer_norm_##type) { layer_norm<type>(arguments); }

ARG_EXTREMES(f32, f32)
ARG_EXTREMES(f64, f64)
ARG_EXTREMES(f16, f16)
ARG_EXTREMES(bf16, bf16)
ARG_EXTREMES(i8, i8)
ARG_EXTREMES(i16, i16)
ARG_EXTREMES(i32, i32)
ARG_EXTREMES(i64, i64)
ARG_EXTREMES(u8, u8)
ARG_EXTREMES(u16, u16)
ARG_EXTREMES(u32, u32)
ARG_EXTREMES(u64, u64)
ARG_EXTREMES(bool, u8)

SOFTMAX(f32)
SOFTMAX(f64)
SOFTMAX(f16)
SOFTMAX(bf16)
