// Random numbers by Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, SC'11): a thread computes a block, and the elements that
// it is enough for. As in the CPU kernels, an element depends on the seed, the counter and its row-major index alone.
#include "number.cuh"

struct Words {
    u32 of[4];
};

__device__ __forceinline__ Words philox(u64 seed, u64 block) {
    u32 key[2] = {(u32)seed, (u32)(seed >> 32)};
    Words counter = {{(u32)block, (u32)(block >> 32), 0, 0}};
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        u64 first = (u64)0xD2511F53u * counter.of[0];
        u64 second = (u64)0xCD9E8D57u * counter.of[2];
        counter = Words{{(u32)(second >> 32) ^ counter.of[1] ^ key[0], (u32)second,
                         (u32)(first >> 32) ^ counter.of[3] ^ key[1], (u32)first}};
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return counter;
}

__device__ __forceinline__ f32 unit(u32 bits) { return (f32)bits * (1.0f / 16777216.0f); }
__device__ __forceinline__ f64 unit(u64 bits) { return (f64)bits * (1.0 / 9007199254740992.0); }
__device__ __forceinline__ u64 wide_word(u32 low, u32 high) { return ((u64)high << 32 | low) >> 11; }

// Two normal numbers from one of (0, 1] and one of [0, 1), by the transform of Box and Muller. The angle is a part of a turn:
// there is nothing to reduce, which would be most of the code.
__device__ __forceinline__ void pair(f32 size, f32 turn, f32 *out) {
    f32 radius = sqrtf(-2.0f * logf(size)), sine, cosine;
    sincospif(2.0f * turn, &sine, &cosine);
    out[0] = radius * cosine;
    out[1] = radius * sine;
}
__device__ __forceinline__ void pair(f64 size, f64 turn, f64 *out) {
    f64 radius = sqrt(-2.0 * log(size)), sine, cosine;
    sincospi(2.0 * turn, &sine, &cosine);
    out[0] = radius * cosine;
    out[1] = radius * sine;
}

// EACH elements are made from a block, in the type that they are computed in. A 16-bit float has BITS bits below 1.
template <class T> struct Drawn {
    enum { EACH = 4 };
    typedef f32 W;
};
template <> struct Drawn<f64> {
    enum { EACH = 2 };
    typedef f64 W;
};
template <class T> struct Bits { enum { value = 24 }; };
template <> struct Bits<f16> { enum { value = 11 }; };
template <> struct Bits<bf16> { enum { value = 8 }; };

struct Uniform {
    // The bits that the type has no room for are cut off, so nothing is rounded up to 1.
    template <class T> static __device__ __forceinline__ void of(const Words &words, f32 *out) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i] = unit(words.of[i] >> (32 - Bits<T>::value) << (24 - Bits<T>::value));
    }
    template <class T> static __device__ __forceinline__ void of(const Words &words, f64 *out) {
        out[0] = unit(wide_word(words.of[0], words.of[1]));
        out[1] = unit(wide_word(words.of[2], words.of[3]));
    }
};
struct Normal {
    template <class T> static __device__ __forceinline__ void of(const Words &words, f32 *out) {
        pair(unit((words.of[0] >> 8) + 1), unit(words.of[1] >> 8), out);
        pair(unit((words.of[2] >> 8) + 1), unit(words.of[3] >> 8), out + 2);
    }
    template <class T> static __device__ __forceinline__ void of(const Words &words, f64 *out) {
        pair(unit(wide_word(words.of[0], words.of[1]) + 1), unit(wide_word(words.of[2], words.of[3])), out);
    }
};

template <class T, class F> __device__ __forceinline__ void draw(const Arguments &arguments) {
    const u64 each = Drawn<T>::EACH;
    u64 blocks = (arguments.elements + each - 1) / each;
    for (u64 block = first_thread(); block < blocks; block += all_threads()) {
        typename Drawn<T>::W drawn[Drawn<T>::EACH];
        F::template of<T>(philox(arguments.value, arguments.counter + block), drawn);
#pragma unroll
        for (int i = 0; i < Drawn<T>::EACH; ++i) {
            u64 index = block * each + i;
            if (index < arguments.elements) {
                i64 offsets[1];
                place(arguments, index, offsets);
                at<T>(arguments.views[0])[offsets[0]] = To<T>::from(drawn[i]);
            }
        }
    }
}

#define DRAW(type)                                                     \
    KERNEL(sv_uniform_##type) { draw<type, Uniform>(arguments); }      \
    KERNEL(sv_normal_##type) { draw<type, Normal>(arguments); }

DRAW(f32)
DRAW(f64)
DRAW(f16)
DRAW(bf16)
