// The k largest magnitudes of several arrays: a radix select finds the k-th largest key, then two passes write what is chosen.
//
// A key is the magnitude's bits as an unsigned number: equal magnitudes have equal keys, and NaN has the largest of all.
#include "common.cuh"

static const int TILE = 2048;  // values that a block of 256 threads looks at in turn
static const int BINS = 2048;  // of a digit of 11 bits

// What the select has found so far: the upper digits of the k-th largest key, the lower ones 0, and how many of the keys that
// share them are wanted. In the end: the key itself, and how many of its ties are chosen.
struct State { u64 key, wanted; };

__device__ __forceinline__ u32 key_of(Half x) { const u32 b = x.bits & 0x7fffu; return b > 0x7c00u ? 0xffffu : b; }
__device__ __forceinline__ u32 key_of(BFloat16 x) { const u32 b = x.bits & 0x7fffu; return b > 0x7f80u ? 0xffffu : b; }
__device__ __forceinline__ u32 key_of(float x) { return is_nan(x) ? ~0u : __float_as_uint(x) & 0x7fffffffu; }
__device__ __forceinline__ u64 key_of(double x) { return is_nan(x) ? ~0ull : (u64)__double_as_longlong(x) & ~0ull >> 1; }
__device__ __forceinline__ u32 key_of(signed char x) { return x < 0 ? -(int)x : (int)x; }
__device__ __forceinline__ u32 key_of(short x) { return x < 0 ? -(int)x : (int)x; }
__device__ __forceinline__ u32 key_of(int x) { return x < 0 ? 0u - (u32)x : (u32)x; }
__device__ __forceinline__ u64 key_of(i64 x) { return x < 0 ? 0ull - (u64)x : (u64)x; }
__device__ __forceinline__ u32 key_of(u8 x) { return x; }
__device__ __forceinline__ u32 key_of(u16 x) { return x; }
__device__ __forceinline__ u32 key_of(u32 x) { return x; }
__device__ __forceinline__ u64 key_of(u64 x) { return x; }

// Of the keys that share the digits found so far (the bits in `upper`), how many have each next digit (key >> shift & mask).
// A thread a value, grid-stride; a block sees fewer than 2**32. Reads each value once. Race-free: counts change atomically, the
// block's between two barriers.
template <typename T>
__global__ void __launch_bounds__(256, 2) sparsekit_histogram(const T* __restrict__ x, i64 n, const State* __restrict__ state, i64 upper,
                                                           i64 shift, i64 mask, u64* count) {
  typedef decltype(key_of(T())) Key;
  __shared__ u32 here[BINS];
  for (int bin = threadIdx.x; bin < BINS; bin += 256) here[bin] = 0;
  __syncthreads();
  const Key found = (Key)state->key;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    const Key key = key_of(x[i]);
    if ((key & (Key)upper) == found) atomicAdd(&here[(int)(key >> (int)shift) & (int)mask], 1u);
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < BINS; bin += 256)
    if (here[bin]) atomicAdd(&count[bin], (u64)here[bin]);
}

// The next digit of the k-th largest key; sets all counts to 0 for the one after. One block of 256 threads, 8 bins a thread.
// Moves 32 KiB. Race-free: a thread has its own bins; of all threads one finds its bins to hold the wanted rank, and it alone writes
// *state, after the barrier behind which all have read it.
extern "C" __global__ void __launch_bounds__(256, 2) sparsekit_next_digit(u64* __restrict__ count, State* __restrict__ state, i64 shift) {
  __shared__ u64 sums[256];
  const u64 key = state->key, wanted = state->wanted;
  u64 mine[8], sum = 0;
  for (int j = 0; j < 8; j++) {
    mine[j] = count[threadIdx.x * 8 + j];
    count[threadIdx.x * 8 + j] = 0;
    sum += mine[j];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  u64 larger = 0;  // keys with a larger digit
  for (int t = threadIdx.x + 1; t < 256; t++) larger += sums[t];
  for (int j = 7; j >= 0; j--) {
    if (larger < wanted && wanted <= larger + mine[j]) {
      state->key = key | (u64)(threadIdx.x * 8 + j) << shift;
      state->wanted = wanted - larger;
    }
    larger += mine[j];
  }
}

// How many keys of each tile of TILE values are larger than the k-th largest, and how many equal it. A block a tile, blocks loop.
// Reads each value once. Race-free: only thread 0 of the one block that has the tile writes its counts.
template <typename T>
__global__ void __launch_bounds__(256, 2) sparsekit_count_topk(const T* __restrict__ x, i64 n, const State* __restrict__ state,
                                                            i64* __restrict__ tile_larger, i64* __restrict__ tile_equal) {
  typedef decltype(key_of(T())) Key;
  const Key kth = (Key)state->key;
  for (i64 tile = blockIdx.x; tile * TILE < n; tile += gridDim.x) {
    i64 larger = 0, equal = 0;
    for (int j = 0; j < TILE; j += 256) {
      const i64 i = tile * TILE + j + threadIdx.x;
      const Key key = i < n ? key_of(x[i]) : 0;
      larger += __syncthreads_count(i < n && key > kth);
      equal += __syncthreads_count(i < n && key == kth);
    }
    if (threadIdx.x == 0) {
      tile_larger[tile] = larger;
      tile_equal[tile] = equal;
    }
  }
}

// Positions of the chosen values of one array, in order: all larger than the k-th largest, and of its ties the first in all arrays.
// ends_larger[t] and ends_equal[t] count those in tiles 0 ... t of all arrays; this one's tiles begin at first_tile. A block a tile,
// blocks loop. Reads each value once, writes 8 bytes for each that is chosen. Race-free: each chosen value has a rank of its own;
// shared counts are read between two barriers.
template <typename T>
__global__ void __launch_bounds__(256, 2) sparsekit_write_topk(const T* __restrict__ x, i64 n, const State* __restrict__ state,
                                                            const i64* __restrict__ ends_larger, const i64* __restrict__ ends_equal,
                                                            i64 first_tile, i64* __restrict__ out) {
  typedef decltype(key_of(T())) Key;
  __shared__ int warp_larger[8], warp_equal[8];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u32 before_lane = (1u << lane) - 1;
  const Key kth = (Key)state->key;
  const i64 ties = (i64)state->wanted;
  for (i64 tile = blockIdx.x; tile * TILE < n; tile += gridDim.x) {
    const i64 number = first_tile + tile;
    i64 larger = number ? ends_larger[number - 1] : 0, equal = number ? ends_equal[number - 1] : 0;
    for (int j = 0; j < TILE; j += 256) {
      const i64 i = tile * TILE + j + threadIdx.x;
      const Key key = i < n ? key_of(x[i]) : 0;
      const bool is_larger = i < n && key > kth, is_equal = i < n && key == kth;
      const u32 all_larger = __ballot_sync(0xffffffffu, is_larger), all_equal = __ballot_sync(0xffffffffu, is_equal);
      if (lane == 0) {
        warp_larger[warp] = __popc(all_larger);
        warp_equal[warp] = __popc(all_equal);
      }
      __syncthreads();
      i64 my_larger = larger + __popc(all_larger & before_lane), my_equal = equal + __popc(all_equal & before_lane);
      for (int w = 0; w < 8; w++) {
        if (w < warp) {
          my_larger += warp_larger[w];
          my_equal += warp_equal[w];
        }
        larger += warp_larger[w];
        equal += warp_equal[w];
      }
      if (is_larger || (is_equal && my_equal < ties)) out[my_larger + (my_equal < ties ? my_equal : ties)] = i;
      __syncthreads();  // warp_larger and warp_equal are written anew
    }
  }
}
