// Threads that share rows: `lanes` threads fold a row, or share the elements of one reduction, each every `lanes`-th element, then their states are joined
// as a tree in shared memory. The order is always the same, so the result is too. Neighbouring threads are lanes of one row, or, if the planner says
// `across`, work on neighbouring rows: whichever reads memory in its order.
#pragma once

#include "number.cuh"

struct Team {
    u32 lanes;
    u32 teams;
    // Which lane of which team this thread is, and how far away in the block the next lane is.
    u32 lane;
    u32 team;
    u32 step;

    __device__ __forceinline__ Team(const Arguments &arguments) {
        lanes = arguments.lanes;
        teams = blockDim.x / lanes;
        bool across = arguments.across != 0;
        lane = across ? threadIdx.x / teams : threadIdx.x % lanes;
        team = across ? threadIdx.x % teams : threadIdx.x / lanes;
        step = across ? teams : 1;
    }

    // The states of all lanes joined, for each of them. Every thread of the block takes part.
    template <class F> __device__ __forceinline__ typename F::State join(typename F::State state) const {
        typename F::State *states = (typename F::State *)shared_memory();
        states[threadIdx.x] = state;
        for (u32 half = lanes / 2; half > 0; half /= 2) {
            __syncthreads();
            if (lane < half) states[threadIdx.x] = F::join(states[threadIdx.x], states[threadIdx.x + half * step]);
        }
        __syncthreads();
        state = states[threadIdx.x - lane * step];
        // The next use of the states waits for this one.
        __syncthreads();
        return state;
    }
};

template <class T> struct SumOf { typedef T type; };
template <> struct SumOf<f32> { typedef f64 type; };

// Sums of f32 and bf16 are kept in f64, those of f16 in f32, and rounded once: so no sum on the way is past the range.
template <class T> struct Sum {
    typedef typename SumOf<T>::type State;
    static __device__ __forceinline__ State start() { return 0; }
    static __device__ __forceinline__ State join(State left, State right) {
        return (State)((Unsigned<State>)left + (Unsigned<State>)right);
    }
    static __device__ __forceinline__ State step(State state, T element, u64) { return join(state, (State)wide(element)); }
    static __device__ __forceinline__ T finish(State state, u64) { return (T)state; }
};
template <class T, class S> struct SumNarrow {
    typedef S State;
    static __device__ __forceinline__ State start() { return 0; }
    static __device__ __forceinline__ State join(State left, State right) { return left + right; }
    static __device__ __forceinline__ State step(State state, T element, u64) { return state + (State)wide(element); }
    static __device__ __forceinline__ T finish(State state, u64) { return To<T>::from(state); }
};
template <> struct Sum<f16> : SumNarrow<f16, f32> {};
template <> struct Sum<bf16> : SumNarrow<bf16, f64> {};

template <class T> struct Largest {
    typedef Wide<T> State;
    static __device__ __forceinline__ State start() { return Range<State>::lowest(); }
    static __device__ __forceinline__ State join(State x, State y) { return x > y || is_nan(x) ? x : y; }
    static __device__ __forceinline__ State step(State state, T element, u64) { return join(state, wide(element)); }
    static __device__ __forceinline__ T finish(State state, u64) { return To<T>::from(state); }
};

__device__ __forceinline__ f32 exponential(f32 x) { return expf(x); }
__device__ __forceinline__ f64 exponential(f64 x) { return exp(x); }

// The rows that a team works on, one after the other, in N operands. A thread without a row has no elements, but joins.
template <int N> struct Rows {
    const Arguments &arguments;
    Team team;
    u64 round;
    u64 elements;
    i64 offsets[N];

    __device__ __forceinline__ Rows(const Arguments &arguments) : arguments(arguments), team(arguments), round(blockIdx.x) {}

    // Is there another round? Then the team's row of it, if it has one.
    __device__ __forceinline__ bool next() {
        u64 row = round * team.teams + team.team;
        if (round * team.teams >= arguments.elements) return false;
        round += gridDim.x;
#pragma unroll
        for (int view = 0; view < N; ++view) offsets[view] = 0;
        elements = row < arguments.elements ? arguments.inner_elements : 0;
        if (elements > 0) place(arguments, row, offsets);
        return true;
    }

    // Element `index` of the row of an operand.
    template <class T> __device__ __forceinline__ T &of(int view, u64 index) const {
        const View &whole = arguments.views[view];
        return at<T>(whole)[offsets[view] + (i64)index * whole.strides[arguments.rank]];
    }

    // The largest element of the row of the first operand.
    template <class T> __device__ __forceinline__ Wide<T> largest() const {
        Wide<T> found = Largest<T>::start();
        for (u64 index = team.lane; index < elements; index += team.lanes) {
            found = Largest<T>::join(found, wide(of<const T>(0, index)));
        }
        return team.join<Largest<T>>(found);
    }

    // The sum of the exponentials of the elements of the row of the first operand less `less`, in f64.
    template <class T> __device__ __forceinline__ f64 exponentials(Wide<T> less) const {
        f64 sum = 0;
#pragma unroll 1
        for (u64 index = team.lane; index < elements; index += team.lanes) {
            sum += (f64)exponential(wide(of<const T>(0, index)) - less);
        }
        return team.join<Sum<f64>>(sum);
    }
};
