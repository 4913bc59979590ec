// What every kernel is given, as in abi.rs, which elements a thread takes, and the way from an index to the place of an element.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;

#define MAX_RANK 8
#define MAX_VIEWS 4

struct View {
    u64 base;
    i64 strides[MAX_RANK];
};

struct Arguments {
    View views[MAX_VIEWS];
    i64 shape[MAX_RANK];
    i64 inner[MAX_RANK];
    u32 rank;
    u32 inner_rank;
    u64 elements;
    u64 inner_elements;
    u64 value;
    u64 counter;
    u64 status;
    u32 vectors;
    u32 lanes;
    u32 across;
    u32 before;
};

// `before` of a reduction that is launched twice; 0 if it is launched once.
#define FOLD 1
#define JOIN 2

struct Status {
    u64 index;
    i64 value;
};

// Threads of a block: all kernels but reductions, softmax, norms, cross entropy and gradients of these are launched with at most the first.
#define BLOCK 256
#define LARGEST_BLOCK 1024

#define KERNEL(name) extern "C" __global__ void __launch_bounds__(BLOCK) name(const __grid_constant__ Arguments arguments)
#define LARGE_KERNEL(name) \
    extern "C" __global__ void __launch_bounds__(LARGEST_BLOCK, 1) name(const __grid_constant__ Arguments arguments)

#ifdef __CUDACC__
extern __shared__ __align__(16) u8 dynamic_shared[];

// The block's shared memory, of as many bytes as it was launched with.
__device__ __forceinline__ u8 *shared_memory() { return dynamic_shared; }
#endif

__device__ __forceinline__ u64 first_thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 all_threads() { return (u64)gridDim.x * blockDim.x; }

template <class T>
__device__ __forceinline__ T *at(const View &view) {
    return (T *)view.base;
}

// Offsets, in elements, of index `index` of the outer axes in the first `N` views. The outermost axis needs no division, so
// one axis needs none. A division by what fits 32 bits is one of 32 bits: the compiler tests for that.
template <int N>
__device__ __forceinline__ void place(const Arguments &arguments, u64 index, i64 (&offsets)[N]) {
#pragma unroll
    for (int view = 0; view < N; ++view) offsets[view] = 0;
#pragma unroll 1
    for (u32 axis = arguments.rank; axis > 1;) {
        --axis;
        u64 size = (u64)arguments.shape[axis];
        u64 next = index / size;
        i64 step = (i64)(index - next * size);
#pragma unroll
        for (int view = 0; view < N; ++view) offsets[view] += step * arguments.views[view].strides[axis];
        index = next;
    }
#pragma unroll
    for (int view = 0; view < N; ++view) offsets[view] += (i64)index * arguments.views[view].strides[0];
}

// Offset, in elements, of index `index` of the inner axes in the first view.
__device__ __forceinline__ i64 inner_place(const Arguments &arguments, u64 index) {
    const i64 *strides = arguments.views[0].strides + arguments.rank;
    i64 offset = 0;
#pragma unroll 1
    for (u32 axis = arguments.inner_rank; axis > 1;) {
        --axis;
        u64 size = (u64)arguments.inner[axis];
        u64 next = index / size;
        offset += (i64)(index - next * size) * strides[axis];
        index = next;
    }
    return offset + (i64)index * strides[0];
}
