// Runs the CUDA kernels' own source on the CPU: what CUDA C has and C++ has not, and a block whose threads are coroutines.
//
// A kernel without shared memory has threads that know nothing of each other: they run one after the other. The others run
// as coroutines that take turns at barriers, in an order drawn from a seed, so that a missing barrier shows. A barrier
// that not all threads of the block come to is an error, and so is a write behind the block's shared memory, which holds
// noise when the block begins. Misaligned accesses, shifts and overflows that C++ does not define end in a trap (g++'s
// -fsanitize).
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include <memory>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

namespace simulation {

struct Dim {
    unsigned x, y, z;
};

enum class State { Ready, AtBarrier, Over };

const size_t STACK = 64 << 10;
// Bytes behind the shared memory that nobody may write.
const size_t BAND = 64;

struct Fiber {
    jmp_buf resume;
    State state;
    unsigned thread;
    bool begun = false;
    std::unique_ptr<char[]> stack{new char[STACK]};
};

struct Block {
    Dim thread, block, block_size, grid_size;
    std::vector<std::unique_ptr<Fiber>> fibers;
    Fiber *current = nullptr;
    jmp_buf scheduler;
    alignas(16) uint8_t shared[(48 << 10) + BAND];
    void (*run)(void) = nullptr;
    uint64_t seed = 0;

    uint64_t draw() {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        return seed >> 33;
    }

    // The running coroutine gives its turn away.
    void pause(State state) {
        Fiber *fiber = current;
        if (fiber == nullptr) return;
        fiber->state = state;
        if (_setjmp(fiber->resume) == 0) _longjmp(scheduler, 1);
    }
};

inline thread_local Block world;

// A coroutine is used for one thread after the other.
inline void coroutine() {
    for (;;) {
        world.run();
        world.pause(State::Over);
    }
}

inline void turn(Fiber *fiber) {
    world.current = fiber;
    world.thread = Dim{fiber->thread, 0, 0};
    if (_setjmp(world.scheduler) == 0) {
        if (fiber->begun) _longjmp(fiber->resume, 1);
        fiber->begun = true;
        ucontext_t context;
        getcontext(&context);
        context.uc_stack.ss_sp = fiber->stack.get();
        context.uc_stack.ss_size = STACK;
        context.uc_link = nullptr;
        makecontext(&context, coroutine, 0);
        setcontext(&context);
    }
    world.current = nullptr;
}

// Runs one block. False if a barrier was left by some threads and not reached by others.
inline bool run_block(unsigned threads) {
    while (world.fibers.size() < threads) world.fibers.emplace_back(new Fiber);
    for (unsigned thread = 0; thread < threads; ++thread) {
        world.fibers[thread]->state = State::Ready;
        world.fibers[thread]->thread = thread;
    }
    for (;;) {
        // From a drawn place, in a drawn direction: every other of those that are ready, until none is. So one can be any number
        // of turns ahead of another.
        size_t at_barrier = 0, over = 0;
        for (bool any = true; any;) {
            any = false;
            size_t start = world.draw() % threads, backwards = world.draw() % 2;
            for (unsigned i = 0; i < threads; ++i) {
                Fiber *fiber = world.fibers[(start + (backwards ? threads - i : i)) % threads].get();
                if (fiber->state != State::Ready) continue;
                any = true;
                if (world.draw() % 2 == 0) turn(fiber);
            }
        }
        for (unsigned thread = 0; thread < threads; ++thread) {
            at_barrier += world.fibers[thread]->state == State::AtBarrier;
            over += world.fibers[thread]->state == State::Over;
        }
        if (over == threads) return true;
        if (at_barrier != threads) return false;
        for (unsigned thread = 0; thread < threads; ++thread) world.fibers[thread]->state = State::Ready;
    }
}

}  // namespace simulation

#define threadIdx simulation::world.thread
#define blockIdx simulation::world.block
#define blockDim simulation::world.block_size
#define gridDim simulation::world.grid_size

#include "abi.cuh"

inline u8 *shared_memory() { return simulation::world.shared; }
inline void __syncthreads() { simulation::world.pause(simulation::State::AtBarrier); }
// Threads that tell of failures take turns here.
inline void __threadfence() { simulation::world.pause(simulation::State::Ready); }
inline u64 atomicMin(u64 *address, u64 value) {
    simulation::world.pause(simulation::State::Ready);
    u64 before = *address;
    if (value < before) *address = value;
    simulation::world.pause(simulation::State::Ready);
    return before;
}

// Sine and cosine of pi times `x`.
inline void sincospi(f64 x, f64 *sine, f64 *cosine) {
    *sine = sin(M_PI * x);
    *cosine = cos(M_PI * x);
}
inline void sincospif(f32 x, f32 *sine, f32 *cosine) {
    *sine = (f32)sin(M_PI * (f64)x);
    *cosine = (f32)cos(M_PI * (f64)x);
}
inline u32 bits_of(f32 x) {
    u32 bits;
    memcpy(&bits, &x, 4);
    return bits;
}
inline f32 f32_of(u32 bits) {
    f32 x;
    memcpy(&x, &bits, 4);
    return x;
}
inline f64 f64_of(u64 bits) {
    f64 x;
    memcpy(&x, &bits, 8);
    return x;
}
inline f32 f16_to_f32(u16 bits) {
    _Float16 x;
    memcpy(&x, &bits, 2);
    return (f32)x;
}
inline u16 f32_to_f16(f32 wide) {
    _Float16 x = (_Float16)wide;
    u16 bits;
    memcpy(&bits, &x, 2);
    return bits;
}

namespace simulation {

typedef void (*Kernel)(const Arguments);
inline thread_local Kernel kernel;
inline thread_local const Arguments *arguments;

}  // namespace simulation

// Runs a launch: 0, or 1 if threads parted at a barrier, 2 if a block wrote behind its shared memory of `shared_bytes`.
extern "C" int simulate(simulation::Kernel kernel, const unsigned *grid, const unsigned *block, unsigned shared_bytes,
                        const Arguments *arguments, int coroutines, u64 seed) {
    using namespace simulation;
    simulation::kernel = kernel;
    simulation::arguments = arguments;
    world.run = [] { simulation::kernel(*simulation::arguments); };
    world.seed = seed;
    world.grid_size = Dim{grid[0], grid[1], grid[2]};
    world.block_size = Dim{block[0], block[1], block[2]};
    for (unsigned at = 0; at < grid[0] * grid[1]; ++at) {
        world.block = Dim{at % grid[0], at / grid[0], 0};
        memset(world.shared, 0xa5, sizeof world.shared);
        if (coroutines) {
            if (!run_block(block[0])) {
                // Those in the midst of it are never resumed.
                world.fibers.clear();
                return 1;
            }
        } else {
            for (unsigned thread = 0; thread < block[0]; ++thread) {
                world.thread = Dim{thread, 0, 0};
                world.run();
            }
        }
        for (size_t behind = shared_bytes; behind < shared_bytes + BAND; ++behind) {
            if (world.shared[behind] != 0xa5) return 2;
        }
    }
    return 0;
}
