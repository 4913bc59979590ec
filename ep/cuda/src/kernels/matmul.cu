// Matrix products of any strides, one batch of them: a block computes a square tile of a product, its threads 4 by 4 elements
// each, from tiles of both factors that it keeps in shared memory.
#include "number.cuh"

// Rows and columns of a tile, and how much of k is in shared memory at a time.
#define TILE 64
#define DEPTH 16
// One more, so that the threads of a warp, which fill a column, do not all write to one bank.
#define PITCH (TILE + 1)
// Threads along one side of a tile, and elements of each along it.
#define SIDE 16
#define EACH (TILE / SIDE)

// Fills a tile of `DEPTH` by `TILE`: [k][i] is the element of index `i` along the side of the product and `k` along the
// other axis. Zeros past the ends.
template <class T, class W>
__device__ __forceinline__ void fill_tile(W (*tile)[PITCH], const T *matrix, u64 first, u64 size, i64 stride, u64 first_k,
                                          u64 depth, i64 k_stride) {
    // Neighbouring threads read neighbouring elements, whichever axis that is.
    bool along_k = k_stride == 1;
    u32 k = along_k ? threadIdx.x % DEPTH : threadIdx.x / TILE;
    u32 i = along_k ? threadIdx.x / DEPTH : threadIdx.x % TILE;
    u32 k_step = along_k ? 0 : BLOCK / TILE;
    u32 i_step = along_k ? BLOCK / DEPTH : 0;
#pragma unroll
    for (u32 part = 0; part < TILE * DEPTH / BLOCK; ++part) {
        u64 row = first + i, column = first_k + k;
        W element = 0;
        if (row < size && column < depth) element = (W)wide(matrix[(i64)row * stride + (i64)column * k_stride]);
        tile[k][i] = element;
        k += k_step;
        i += i_step;
    }
}

// W is what is added up: f32 for 16-bit floats, unsigned for integers, so that they wrap.
template <class T, class W> __device__ __forceinline__ void matmul(const Arguments &arguments) {
    W(*left)[PITCH] = (W(*)[PITCH])shared_memory();
    W(*right)[PITCH] = left + DEPTH;
    u64 m = (u64)arguments.inner[0], n = (u64)arguments.inner[1], depth = (u64)arguments.inner[2];
    u64 tiles_m = (m + TILE - 1) / TILE, tiles_n = (n + TILE - 1) / TILE;
    u64 tiles = arguments.elements * tiles_m * tiles_n;
    u32 row = threadIdx.x / SIDE, column = threadIdx.x % SIDE;
    const i64 *a_strides = arguments.views[0].strides + arguments.rank;
    const i64 *b_strides = arguments.views[1].strides + arguments.rank;
    const i64 *out_strides = arguments.views[2].strides + arguments.rank;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        u64 first_n = tile % tiles_n * TILE;
        u64 first_m = tile / tiles_n % tiles_m * TILE;
        i64 offsets[3];
        place(arguments, tile / tiles_n / tiles_m, offsets);
        const T *a = at<const T>(arguments.views[0]) + offsets[0];
        const T *b = at<const T>(arguments.views[1]) + offsets[1];
        T *out = at<T>(arguments.views[2]) + offsets[2];

        W sums[EACH][EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
#pragma unroll
            for (int j = 0; j < EACH; ++j) sums[i][j] = 0;
        }
#pragma unroll 1
        for (u64 first_k = 0; first_k < depth; first_k += DEPTH) {
            fill_tile(left, a, first_m, m, a_strides[0], first_k, depth, a_strides[1]);
            fill_tile(right, b, first_n, n, b_strides[1], first_k, depth, b_strides[0]);
            __syncthreads();
#pragma unroll 4
            for (int k = 0; k < DEPTH; ++k) {
                W x[EACH], y[EACH];
#pragma unroll
                for (int i = 0; i < EACH; ++i) x[i] = left[k][row + i * SIDE];
#pragma unroll
                for (int j = 0; j < EACH; ++j) y[j] = right[k][column + j * SIDE];
#pragma unroll
                for (int i = 0; i < EACH; ++i) {
#pragma unroll
                    for (int j = 0; j < EACH; ++j) sums[i][j] += x[i] * y[j];
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
#pragma unroll
            for (int j = 0; j < EACH; ++j) {
                u64 to_row = first_m + row + i * SIDE, to_column = first_n + column + j * SIDE;
                if (to_row < m && to_column < n) {
                    out[(i64)to_row * out_strides[0] + (i64)to_column * out_strides[1]] = To<T>::from(sums[i][j]);
                }
            }
        }
    }
}

KERNEL(sv_matmul_f32) { matmul<f32, f32>(arguments); }
KERNEL(sv_matmul_f64) { matmul<f64, f64>(arguments); }
KERNEL(sv_matmul_f16) { matmul<f16, f32>(arguments); }
KERNEL(sv_matmul_bf16) { matmul<bf16, f32>(arguments); }
KERNEL(sv_matmul_i32) { matmul<u32, u32>(arguments); }
KERNEL(sv_matmul_i64) { matmul<u64, u64>(arguments); }
