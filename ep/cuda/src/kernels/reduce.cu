// Reductions over the inner axes, argmax, argmin, softmax, log-softmax and their gradients, layer norm. Threads share outputs, or rows, as rows.cuh says.
#include "rows.cuh"

// Of f64 a sum of scaled elements goes along, which is taken where the plain one is no finite number. A sum on the way may be past the range although the result
// is not.
struct Total {
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
struct MeanOfTotal : Total {
    static __device__ __forceinline__ f64 finish(State state, u64 count) { return over(state, (f64)count); }
};
template <class W> struct Mean : Sum<W> {
    static __device__ __forceinline__ W finish(W state, u64 count) { return state / (W)count; }
};

template <class W> struct Smallest {
    typedef W State;
    static __device__ __forceinline__ State start() { return Range<W>::highest(); }
    static __device__ __forceinline__ State join(State x, State y) { return x < y || is_nan(x) ? x : y; }
    static __device__ __forceinline__ State step(State state, W element, u64) { return join(state, element); }
    static __device__ __forceinline__ W finish(State state, u64) { return state; }
};

// Integers wrap.
template <class W> struct Prod {
    typedef W State;
    static __device__ __forceinline__ State start() { return 1; }
    static __device__ __forceinline__ State join(State x, State y) { return (W)((Unsigned<W>)x * (Unsigned<W>)y); }
    static __device__ __forceinline__ State step(State state, W element, u64) { return join(state, element); }
    static __device__ __forceinline__ W finish(State state, u64) { return state; }
};

// Count, mean, and sum of the squares of the differences to it: one more element by Welford (1962), two lots by Chan, Golub and LeVeque (1979).
struct Moments {
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
    static __device__ __forceinline__ State step(State state, f64 x, u64) {
        f64 count = state.count + 1;
        f64 before = x - state.mean;
        f64 mean = state.mean + before / count;
        return State{count, mean, state.squares + before * (x - mean)};
    }
};
struct Var : Moments {
    static __device__ __forceinline__ f64 finish(State state, u64) { return state.squares / state.count; }
};
struct Std : Moments {
    static __device__ __forceinline__ f64 finish(State state, u64) { return sqrt(state.squares / state.count); }
};

// Of bools.
struct Any : Sum<u64> {
    static __device__ __forceinline__ u64 join(u64 x, u64 y) { return x | y; }
    static __device__ __forceinline__ u64 step(u64 state, u64 element, u64) { return state | element; }
};
struct All : Sum<u64> {
    static __device__ __forceinline__ u64 start() { return 1; }
    static __device__ __forceinline__ u64 join(u64 x, u64 y) { return x & y; }
    static __device__ __forceinline__ u64 step(u64 state, u64 element, u64) { return state & element; }
};

// The first of the largest, or of the smallest; a NaN counts as the one that is looked for.
template <class W, bool LARGEST> struct ArgExtreme {
    struct State {
        W extreme;
        i64 index;
    };
    // Behind every element: of equal ones, the one with the smaller index is taken.
    static __device__ __forceinline__ State start() {
        return State{LARGEST ? Range<W>::lowest() : Range<W>::highest(), 0x7fffffffffffffff};
    }
    static __device__ __forceinline__ State join(State x, State y) {
        bool x_nan = is_nan(x.extreme), y_nan = is_nan(y.extreme);
        if (x_nan != y_nan) return x_nan ? x : y;
        if (!x_nan && x.extreme != y.extreme) return (x.extreme > y.extreme) == LARGEST ? x : y;
        return x.index < y.index ? x : y;
    }
    static __device__ __forceinline__ State step(State state, W element, u64 index) { return join(state, State{element, (i64)index}); }
    static __device__ __forceinline__ i64 finish(State state, u64) { return state.index; }
};

// The output of argmax and argmin.
struct Index {
    static __device__ __forceinline__ void store(const View &view, i64 offset, i64 x) { at<i64>(view)[offset] = x; }
};

// One of three passes, which `before` names. A whole reduction folds all elements of its outputs. FOLD folds a part of the elements of each output, the part of
// the block's place along y, and stores the state in the second view: as many states as outputs, part by part. JOIN loads these states from the first view,
// one for each lane, and joins them. A part may be empty.
template <class E, class O, class F> __device__ __forceinline__ void reduce(const Arguments &arguments) {
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
                const View &from = arguments.views[0];
                u64 index = begin + team.lane, lanes = team.lanes;
                // Along one axis, four elements are loaded before the first of them is folded.
                if (arguments.inner_rank < 2) {
                    i64 stride = from.strides[arguments.rank];
#pragma unroll 1
                    for (; index + 3 * lanes < end; index += 4 * lanes) {
                        typename E::Type elements[4];
#pragma unroll
                        for (int i = 0; i < 4; ++i) elements[i] = E::load(from, offsets[0] + (i64)(index + i * lanes) * stride);
#pragma unroll
                        for (int i = 0; i < 4; ++i) state = F::step(state, elements[i], index + i * lanes);
                    }
                }
#pragma unroll 1
                for (; index < end; index += lanes) {
                    state = F::step(state, E::load(from, offsets[0] + inner_place(arguments, index)), index);
                }
            }
        }
        state = team.join<F>(state);
        if (output < outputs && team.lane == 0) {
            if (arguments.before == FOLD) {
                at<State>(arguments.views[1])[blockIdx.y * outputs + output] = state;
            } else {
                O::store(arguments.views[1], offsets[1], F::finish(state, arguments.inner_elements));
            }
        }
    }
}

// The largest element of a row is subtracted first, so that no exponential overflows. Sums are kept in f64.
template <class E> __device__ __forceinline__ void softmax(const Arguments &arguments) {
    Rows<2> rows(arguments);
    while (rows.next()) {
        typename E::Type largest = rows.template largest<E>();
        typename E::Type total = (typename E::Type)rows.template exponentials<E>(largest);
#pragma unroll 1
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            typename E::Type x = rows.template load<E>(0, index);
            rows.template store<E>(1, index, exponential(x - largest) / total);
        }
    }
}

template <class E> __device__ __forceinline__ void log_softmax(const Arguments &arguments) {
    Rows<2> rows(arguments);
    while (rows.next()) {
        typename E::Type largest = rows.template largest<E>();
        typename E::Type total = (typename E::Type)log(rows.template exponentials<E>(largest));
#pragma unroll 1
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            typename E::Type x = rows.template load<E>(0, index);
            rows.template store<E>(1, index, x - largest - total);
        }
    }
}

// Gradients: the first operand is what was given, the second the gradient of that. A difference that may cancel is made in
// f64.
template <class E> __device__ __forceinline__ void softmax_backward(const Arguments &arguments) {
    typedef typename E::Type W;
    Rows<3> rows(arguments);
    while (rows.next()) {
        f64 sum = 0;
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            f64 y = (f64)rows.template load<E>(0, index);
            sum += y * (f64)rows.template load<E>(1, index);
        }
        sum = rows.team.template join<Sum<f64>>(sum);
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            W y = rows.template load<E>(0, index);
            W less = (W)((f64)rows.template load<E>(1, index) - sum);
            rows.template store<E>(2, index, y * less);
        }
    }
}

template <class E> __device__ __forceinline__ void log_softmax_backward(const Arguments &arguments) {
    typedef typename E::Type W;
    Rows<3> rows(arguments);
    while (rows.next()) {
        f64 sum = 0;
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            sum += (f64)rows.template load<E>(1, index);
        }
        sum = rows.team.template join<Sum<f64>>(sum);
#pragma unroll 1
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            f64 probability = (f64)exponential(rows.template load<E>(0, index));
            f64 dy = (f64)rows.template load<E>(1, index);
            rows.template store<E>(2, index, (W)(dy - probability * sum));
        }
    }
}

// Mean and variance of each row, and the elements scaled by them, in f64, rounded once. The operands are the input, the weight and the
// bias, and the output; `value` has the bits of epsilon.
template <class E> __device__ __forceinline__ void layer_norm(const Arguments &arguments) {
    f64 epsilon = f64_of(arguments.value);
    Rows<4> rows(arguments);
    while (rows.next()) {
        f64 count = (f64)arguments.inner_elements;
        f64 sum = 0;
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            sum += (f64)rows.template load<E>(0, index);
        }
        f64 mean = rows.team.template join<Sum<f64>>(sum) / count;
        f64 squares = 0;
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            f64 away = (f64)rows.template load<E>(0, index) - mean;
            squares += away * away;
        }
        f64 scale = 1 / sqrt(rows.team.template join<Sum<f64>>(squares) / count + epsilon);
#pragma unroll 1
        for (u64 index = rows.team.lane; index < rows.elements; index += rows.team.lanes) {
            f64 away = (f64)rows.template load<E>(0, index) - mean;
            f64 weight = (f64)rows.template load<E>(1, index), bias = (f64)rows.template load<E>(2, index);
            rows.template store<E>(3, index, away * scale * weight + bias);
        }
    }
}

ELEMENTS(i64, i64)
ELEMENTS(u64, u64)
ELEMENTS(u64, u8)
ELEMENTS(f32, f32)
ELEMENTS(f32, f16)
ELEMENTS(f64, f64)
ELEMENTS(f64, f32)

// For the dtype in its name it computes in W. `template_of` in kernel_name.rs says which dtypes are made of it.
#define OF(name, dtype, W, T, ...) \
    LARGE_KERNEL(sv_##name##_##dtype) { reduce<Elements<W, T>, Elements<W, T>, __VA_ARGS__>(arguments); }
// As on the CPU: sums of f32 and bf16 are kept in f64, those of f16 in f32, and rounded once: so no sum on the way is past the range.
OF(sum, i64, i64, i64, Sum<i64>)
OF(sum, f64, f64, f64, Total)
OF(sum, f32, f64, f32, Sum<f64>)
OF(sum, f16, f32, f16, Sum<f32>)
OF(mean, f64, f64, f64, MeanOfTotal)
OF(mean, f32, f64, f32, Mean<f64>)
OF(mean, f16, f32, f16, Mean<f32>)
OF(prod, i64, i64, i64, Prod<i64>)
OF(prod, f64, f64, f64, Prod<f64>)
OF(prod, f16, f32, f16, Prod<f32>)
OF(var, f64, f64, f64, Var)
OF(std, f64, f64, f64, Std)
OF(any, bool, u64, u8, Any)
OF(all, bool, u64, u8, All)

#define OF_EACH(W)                                                                                        \
    OF(reduce_max, W, W, W, Largest<W>)                                                                   \
    OF(reduce_min, W, W, W, Smallest<W>)                                                                  \
    LARGE_KERNEL(sv_argmax_##W) { reduce<Elements<W, W>, Index, ArgExtreme<W, true>>(arguments); }        \
    LARGE_KERNEL(sv_argmin_##W) { reduce<Elements<W, W>, Index, ArgExtreme<W, false>>(arguments); }
OF_EACH(i64)
OF_EACH(u64)
OF_EACH(f32)
OF_EACH(f64)

#define OF_ROWS(W)                                                                                        \
    LARGE_KERNEL(sv_softmax_##W) { softmax<Elements<W, W>>(arguments); }                                  \
    LARGE_KERNEL(sv_log_softmax_##W) { log_softmax<Elements<W, W>>(arguments); }                          \
    LARGE_KERNEL(sv_softmax_backward_##W) { softmax_backward<Elements<W, W>>(arguments); }                \
    LARGE_KERNEL(sv_log_softmax_backward_##W) { log_softmax_backward<Elements<W, W>>(arguments); }
OF_ROWS(f32)
OF_ROWS(f64)
// All in f64.
LARGE_KERNEL(sv_layer_norm_f64) { layer_norm<Elements<f64, f64>>(arguments); }
