// argsort and argtopk: the places of elements in sorted order, of all elements of each row along the axis or of the first few. A block sorts a row. It compares
// keys, which are unsigned integers in the order of elements, and places where keys are equal; so no two elements are equal, and every way to sort is stable.
//
// * A row of up to TILE elements is sorted in shared memory, by a bitonic network (Batcher, "Sorting networks and their applications", 1968).
// * A longer one is sorted in tiles, which are then merged: each thread merges parts of PART elements, whose ends it finds by bisection (Odeh et al., "Merge
//   path", 2012). The output has room for that: the halves of an i64 hold a place each, of which a pass reads one and writes the other.
// * If only the first few of a longer row are asked for, they are selected before: digit by digit of their largest key, from the highest on.
#include "abi.cuh"

// Elements that are sorted in shared memory at a time, a power of two; as in plan_sort.rs.
#define TILE 2048u
// Elements that a thread merges at a time; TILE is a multiple of it.
#define PART 16u
// Bits of a digit of a key, and how many digits there are; as in plan_sort.rs.
#define DIGIT_BITS 4
#define DIGITS 16u

// A row: elements of the bits K, and places for some of them.
template <class K> struct Row {
    const K *elements;
    u32 *places;
    // In elements, and in halves of places.
    i64 element_step, place_step;
    // How many elements the row has, and how many are asked for; at least one.
    u32 length, count;
    // What makes keys of elements, as in sort_key.rs. Of a float, the bits of the negative zero, and those that a negative number has inverted; else 0.
    K sign, infinity, negative_zero, inverted;
    // All bits if the largest come first, else 0.
    K reversed;

    __device__ __forceinline__ Row(const Arguments &arguments, u64 row)
        : length((u32)arguments.inner[0]), count((u32)arguments.inner[1]), sign((K)arguments.counter),
          infinity((K)arguments.value), negative_zero(0), inverted(0), reversed(arguments.before != 0 ? (K)~(K)0 : (K)0) {
        if (infinity != (K)~(K)0) {
            negative_zero = sign;
            inverted = (K)~sign;
        }
        i64 offsets[2];
        place(arguments, row, offsets);
        elements = at<const K>(arguments.views[0]) + offsets[0];
        places = at<u32>(arguments.views[1]) + 2 * offsets[1];
        element_step = arguments.views[0].strides[arguments.rank];
        place_step = 2 * arguments.views[1].strides[arguments.rank];
    }

    __device__ __forceinline__ K key(u32 element) const {
        K bits = elements[(i64)element * element_step];
        bits = bits == negative_zero ? (K)0 : bits;
        K key = (K)(bits ^ sign ^ ((bits & sign) != 0 ? inverted : (K)0));
        key = (K)(bits & (K)~sign) > infinity ? (K)~(K)0 : key;
        return (K)(key ^ reversed);
    }

    // The first or second half of place `index`.
    __device__ __forceinline__ u32 &half(u64 index, u32 which) const { return places[(i64)index * place_step + which]; }

    __device__ __forceinline__ void finish(u32 index, u32 element) const {
        half(index, 0) = element;
        half(index, 1) = 0;
    }
};

template <class K> __device__ __forceinline__ bool is_before(K key, u32 place, K other_key, u32 other_place) {
    return key < other_key || (key == other_key && place < other_place);
}

// Sorts `size` keys with their places, a power of two of at least 2, in shared memory that has been written by any thread. Any thread may then read them.
template <class K> __device__ __forceinline__ void sort_tile(K *keys, u32 *places, u32 size) {
#pragma unroll 1
    for (u32 width = 2; width <= size; width *= 2) {
#pragma unroll 1
        for (u32 distance = width / 2; distance > 0; distance /= 2) {
            __syncthreads();
#pragma unroll 1
            for (u32 pair = threadIdx.x; pair < size / 2; pair += blockDim.x) {
                u32 low = 2 * pair - (pair & (distance - 1)), high = low + distance;
                K low_key = keys[low], high_key = keys[high];
                u32 low_place = places[low], high_place = places[high];
                bool ascending = (low & width) == 0;
                if (is_before(high_key, high_place, low_key, low_place) == ascending) {
                    keys[low] = high_key;
                    keys[high] = low_key;
                    places[low] = high_place;
                    places[high] = low_place;
                }
            }
        }
    }
    __syncthreads();
}

// The key of which `row.count` elements have it or a smaller one, and in `equal` how many of those that have it are among these.
template <class K> __device__ __forceinline__ K select_key(const Row<K> &row, u32 *counts, u32 &equal) {
    const int bits = 8 * sizeof(K);
    // A thread counts alone, `blockDim.x` counts apart for each digit; then several threads for each digit add these up.
    u32 *own = counts + threadIdx.x;
    u32 threads = blockDim.x / DIGITS, digit_of_sum = threadIdx.x / threads, first_of_sum = threadIdx.x % threads * DIGITS;
    u32 *summed = counts + digit_of_sum * blockDim.x;
    K found = 0;
    u32 left = row.count;
#pragma unroll 1
    for (int shift = bits - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
#pragma unroll 1
        for (u32 digit = 0; digit < DIGITS; ++digit) own[digit * blockDim.x] = 0;
#pragma unroll 1
        for (u64 element = threadIdx.x; element < row.length; element += blockDim.x) {
            K key = row.key((u32)element);
            // Two shifts, because one by all bits is not defined.
            if ((K)(key ^ found) >> shift >> DIGIT_BITS == 0) ++own[(key >> shift & (DIGITS - 1)) * blockDim.x];
        }
        __syncthreads();
        u32 sum = 0;
#pragma unroll 1
        for (u32 thread = 0; thread < DIGITS; ++thread) sum += summed[first_of_sum + thread];
        summed[first_of_sum] = sum;
        __syncthreads();
        if (first_of_sum == 0) {
#pragma unroll 1
            for (u32 other = DIGITS; other < blockDim.x; other += DIGITS) sum += summed[other];
            summed[0] = sum;
        }
        __syncthreads();
        u32 digit = 0;
#pragma unroll 1
        while (counts[digit * blockDim.x] < left) left -= counts[digit++ * blockDim.x];
        found |= (K)((K)digit << shift);
        __syncthreads();
    }
    equal = left;
    return found;
}

// Of `own`, a number of each thread, the sum of those of the threads before. `cells` are as many as there are threads, and no thread uses them.
__device__ __forceinline__ u32 sum_before(u32 *cells, u32 own) {
    cells[threadIdx.x] = own;
#pragma unroll 1
    for (u32 distance = 1; distance < blockDim.x; distance *= 2) {
        __syncthreads();
        u32 before = threadIdx.x >= distance ? cells[threadIdx.x - distance] : 0;
        __syncthreads();
        cells[threadIdx.x] += before;
    }
    u32 sum = cells[threadIdx.x] - own;
    __syncthreads();
    return sum;
}

// Writes the places of the elements that are asked for, in the order of the row, to the first halves. Any thread may then read them.
template <class K> __device__ __forceinline__ void select(const Row<K> &row, u32 *cells) {
    u32 equal;
    K largest = select_key(row, cells, equal);
    // A thread has elements that lie together.
    u64 each = row.length / blockDim.x + 1, first = threadIdx.x * each, end = first + each;
    if (end > row.length) end = row.length;
    u32 smaller = 0, same = 0;
#pragma unroll 1
    for (u64 element = first; element < end; ++element) {
        K key = row.key((u32)element);
        smaller += key < largest;
        same += key == largest;
    }
    smaller = sum_before(cells, smaller);
    same = sum_before(cells, same);
#pragma unroll 1
    for (u64 element = first; element < end; ++element) {
        K key = row.key((u32)element);
        u32 to = smaller + (same < equal ? same : equal);
        if (key < largest || (key == largest && same < equal)) row.half(to, 0) = (u32)element;
        smaller += key < largest;
        same += key == largest;
    }
    __syncthreads();
}

// Merges sorted parts of `width` places by twos, from one half of the places into the other. Any thread may then read them.
template <class K> __device__ __forceinline__ void merge(const Row<K> &row, u64 count, u64 width, u32 from) {
#pragma unroll 1
    for (u64 begin = (u64)threadIdx.x * PART; begin < count; begin += (u64)blockDim.x * PART) {
        u64 left = begin & ~(2 * width - 1), right = left + width < count ? left + width : count;
        u64 end = left + 2 * width < count ? left + 2 * width : count;
        u64 left_size = right - left, right_size = end - right, diagonal = begin - left;
        // How many of the first `diagonal` elements come from the left part.
        u64 low = diagonal > right_size ? diagonal - right_size : 0, high = diagonal < left_size ? diagonal : left_size;
#pragma unroll 1
        while (low < high) {
            u64 middle = (low + high) / 2;
            u32 one = row.half(left + middle, from), other = row.half(right + diagonal - 1 - middle, from);
            if (is_before(row.key(one), one, row.key(other), other)) low = middle + 1;
            else high = middle;
        }
        u64 one_at = left + low, other_at = right + diagonal - low, last = begin + PART < end ? begin + PART : end;
#pragma unroll 1
        for (u64 to = begin; to < last; ++to) {
            bool takes_one = other_at == end;
            if (!takes_one && one_at < right) {
                u32 one = row.half(one_at, from), other = row.half(other_at, from);
                takes_one = is_before(row.key(one), one, row.key(other), other);
            }
            row.half(to, 1 - from) = row.half(takes_one ? one_at++ : other_at++, from);
        }
    }
    __syncthreads();
}

template <class K> __device__ __forceinline__ void argsort(const Arguments &arguments) {
    u32 *places = (u32 *)shared_memory();
#pragma unroll 1
    for (u64 index = blockIdx.x; index < arguments.elements; index += gridDim.x) {
        Row<K> row(arguments, index);
        bool selects = row.length > TILE && row.count < row.length;
        if (selects) select(row, places);
        u32 sorted = selects ? row.count : row.length;
        // As in plan_sort.rs: at least the threads of a warp.
        u32 size = 32;
        while (size < sorted && size < TILE) size *= 2;
        K *keys = (K *)(places + size);
#pragma unroll 1
        for (u64 first = 0; first < sorted; first += size) {
#pragma unroll 1
            for (u32 at = threadIdx.x; at < size; at += blockDim.x) {
                bool is_there = first + at < sorted;
                u32 element = !is_there ? 0xffffffffu : selects ? row.half(first + at, 0) : (u32)first + at;
                places[at] = element;
                // No place is larger, so what is past the end comes last.
                keys[at] = is_there ? row.key(element) : (K)~(K)0;
            }
            sort_tile(keys, places, size);
#pragma unroll 1
            for (u32 at = threadIdx.x; at < size && first + at < row.count; at += blockDim.x) {
                if (sorted <= size) row.finish(at, places[at]);
                else row.half(first + at, 0) = places[at];
            }
            __syncthreads();
        }
        if (sorted <= size) continue;
        u32 from = 0;
#pragma unroll 1
        for (u64 width = size; width < sorted; width *= 2) {
            merge(row, sorted, width, from);
            from = 1 - from;
        }
#pragma unroll 1
        for (u64 at = threadIdx.x; at < row.count; at += blockDim.x) row.finish((u32)at, row.half(at, from));
    }
}

LARGE_KERNEL(sv_argsort_1) { argsort<u8>(arguments); }
LARGE_KERNEL(sv_argsort_2) { argsort<u16>(arguments); }
LARGE_KERNEL(sv_argsort_4) { argsort<u32>(arguments); }
LARGE_KERNEL(sv_argsort_8) { argsort<u64>(arguments); }
