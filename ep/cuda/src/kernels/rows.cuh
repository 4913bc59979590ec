// Threads that share rows: `lanes` threads fold a row, or share the elements of one reduction, each every `lanes`-th element, then their states are joined
// as a tree in shared memory. The order is always the same, so the result is too. Neighbouring threads are lanes of one row, or, if the planner says
// `across`, work on neighbouring rows: whichever reads memory in its order.
#pragma once

#include "element.cuh"

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

// Integers wrap.
template <class W> struct Sum {
    typedef W State;
    static __device__ __forceinline__ State start() { return 0; }
    static __device__ __forceinline__ State join(State left, State right) { return (W)((Unsigned<W>)left + (Unsigned<W>)right); }
    static __device__ __forceinline__ State step(State state, W element, u64) { return join(state, element); }
    static __device__ __forceinline__ W finish(State state, u64) { return state; }
};

template <class W> struct Largest {
    typedef W State;
    static __device__ __forceinline__ State start() { return Range<W>::lowest(); }
    static __device__ __forceinline__ State join(State x, State y) { return x > y || is_nan(x) ? x : y; }
    static __device__ __forceinline__ State step(State state, W element, u64) { return join(state, element); }
    static __device__ __forceinline__ W finish(State state, u64) { return state; }
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

    // Where element `index` of the row of an operand is.
    __device__ __forceinline__ i64 offset(int view, u64 index) const {
        return offsets[view] + (i64)index * arguments.views[view].strides[arguments.rank];
    }

    template <class E> __device__ __forceinline__ typename E::Type load(int view, u64 index) const {
        return E::load(arguments.views[view], offset(view, index));
    }
    template <class E> __device__ __forceinline__ void store(int view, u64 index, typename E::Type x) const {
        E::store(arguments.views[view], offset(view, index), x);
    }

    // The largest element of the row of the first operand.
    template <class E> __device__ __forceinline__ typename E::Type largest() const {
        typedef Largest<typename E::Type> F;
        typename E::Type found = F::start();
        for (u64 index = team.lane; index < elements; index += team.lanes) found = F::join(found, load<E>(0, index));
        return team.join<F>(found);
    }

    // The sum of the exponentials of the elements of the row of the first operand less `less`, in f64.
    template <class E> __device__ __forceinline__ f64 exponentials(typename E::Type less) const {
        f64 sum = 0;
#pragma unroll 1
        for (u64 index = team.lane; index < elements; index += team.lanes) sum += (f64)exponential(load<E>(0, index) - less);
        return team.join<Sum<f64>>(sum);
    }
};
