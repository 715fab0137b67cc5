// The k largest magnitudes of several arrays, in about two reads of them.
//
// A key is the magnitude's bits as an unsigned number: equal magnitudes have equal keys, and NaN has the largest of all. A sample
// gives a lower bound that at least k keys, but not many more, very likely reach. Those are counted, tile by tile, and collected in
// order: the candidates. A radix select finds the k-th largest key among them, two more passes over them write what is chosen. Where
// the bound was no good, the same kernels select from the arrays themselves: sparsekit_plan decides which by how many tiles there are
// to do, so that the host need not know.
#include "common.cuh"

static const int TILE = 2048;  // values that a block of 256 threads looks at in turn
static const int EACH = TILE / 256;  // of them a thread's
static const int BINS = 2048;  // of a digit of 11 bits

// An array to select from; one row more, behind the last, has the totals.
struct Part { u64 address; i64 size, first_tile, first_value; };

// The upper digits of the k-th largest key, the lower ones 0, and how many of the keys that share them are wanted. In the end: the
// key itself, and how many of its ties are chosen.
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

// The last of `count` parts that begins at or before a tile, or a value, of all.
__device__ __forceinline__ i64 part_of(const Part* parts, i64 count, i64 at, i64 Part::*first) {
  i64 low = 0, high = count;
  while (high - low > 1) {
    const i64 middle = (low + high) / 2;
    if (parts[middle].*first <= at) low = middle;
    else high = middle;
  }
  return low;
}

// A tile's keys, of which each thread has EACH, 256 apart: all are on their way before the first is looked at.
template <typename T> struct Tile {
  typedef decltype(key_of(T())) Key;
  Key key[EACH];
  i64 first, size;  // of its values in the part: this thread's first; how many the part has
  i64 first_value;  // of the part, among all values

  __device__ Tile(const Part* parts, i64 count, i64 number) {
    const Part part = parts[part_of(parts, count, number, &Part::first_tile)];
    const T* const x = reinterpret_cast<const T*>(part.address);
    first = (number - part.first_tile) * TILE + threadIdx.x;
    size = part.size;
    first_value = part.first_value;
#pragma unroll
    for (int j = 0; j < EACH; j++) key[j] = has(j) ? key_of(x[first + j * 256]) : 0;
  }
  __device__ bool has(int j) const { return first + j * 256 < size; }
};

// Keys of values at hashed positions. A thread a sample, grid-stride. Reads a value at random for each, writes 8 bytes. Race-free:
// each thread writes its own.
template <typename T>
__global__ void __launch_bounds__(256, 2) sparsekit_sample(const Part* __restrict__ parts, i64 count, i64 samples, u64* __restrict__ out) {
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < samples; i += (i64)gridDim.x * blockDim.x) {
    u64 z = (u64)(i + 1) * 0x9E3779B97F4A7C15ull;  // splitmix64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    const i64 value = (i64)((z ^ z >> 31) % (u64)parts[count].first_value);
    const Part part = parts[part_of(parts, count, value, &Part::first_value)];
    out[i] = key_of(reinterpret_cast<const T*>(part.address)[value - part.first_value]);
  }
}

// How many keys of each tile are larger than state's, and how many equal it. A block a tile, blocks loop. Reads each value once,
// writes 16 bytes a tile. Race-free: thread 0 of the one block that has the tile writes; warps' counts are read between barriers.
template <typename T>
__global__ void __launch_bounds__(256, 2) sparsekit_count_topk(const Part* __restrict__ parts, i64 count, const i64* __restrict__ tiles,
                                                               const State* __restrict__ state, i64* __restrict__ tile_larger,
                                                               i64* __restrict__ tile_equal) {
  __shared__ int warp_larger[8], warp_equal[8];
  const auto bound = (typename Tile<T>::Key)state->key;
  for (i64 number = blockIdx.x; number < *tiles; number += gridDim.x) {
    const Tile<T> tile(parts, count, number);
    int larger = 0, equal = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      larger += __popc(__ballot_sync(0xffffffffu, tile.has(j) && tile.key[j] > bound));
      equal += __popc(__ballot_sync(0xffffffffu, tile.has(j) && tile.key[j] == bound));
    }
    if ((threadIdx.x & 31) == 0) {
      warp_larger[threadIdx.x >> 5] = larger;
      warp_equal[threadIdx.x >> 5] = equal;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 1; w < 8; w++) {
        larger += warp_larger[w];
        equal += warp_equal[w];
      }
      tile_larger[number] = larger;
      tile_equal[number] = equal;
    }
    __syncthreads();  // the warps' counts are written anew
  }
}

// Decides what to select from, and begins the select. ends_larger and ends_equal count what reaches the guessed bound in tiles up to
// and including each; null without a guess. One thread. Race-free: nothing else runs.
extern "C" __global__ void sparsekit_plan(const i64* ends_larger, const i64* ends_equal, i64 arrays_tiles, i64 k, i64 capacity, i64 keys,
                                          Part* candidates, i64* tiles, State* state) {
  const i64 found = ends_larger ? ends_larger[arrays_tiles - 1] + ends_equal[arrays_tiles - 1] : 0;
  const bool good = k <= found && found <= capacity;
  const i64 candidate_tiles = good ? (found + TILE - 1) / TILE : 0;
  candidates[0] = {(u64)keys, found, 0, 0};
  candidates[1] = {0, 0, candidate_tiles, found};
  tiles[0] = good ? arrays_tiles : 0;  // to collect candidates from
  tiles[1] = candidate_tiles;          // to select from: of candidates,
  tiles[2] = good ? 0 : arrays_tiles;  // or of arrays
  *state = {0, (u64)k};
}

// Of the keys that share the digits found so far (the bits in `upper`), how many have each next digit (key >> shift & mask). A block
// a tile, blocks loop; a block sees fewer than 2**32 values. Reads each value once. Race-free: counts change atomically, the block's
// between two barriers.
template <typename T>
__global__ void __launch_bounds__(256, 2) sparsekit_histogram(const Part* __restrict__ parts, i64 count, const i64* __restrict__ tiles,
                                                              const State* __restrict__ state, i64 upper, i64 shift, i64 mask, u64* bins) {
  typedef typename Tile<T>::Key Key;
  __shared__ u32 here[BINS];
  if (*tiles == 0) return;
  for (int bin = threadIdx.x; bin < BINS; bin += 256) here[bin] = 0;
  __syncthreads();
  const Key found = (Key)state->key;
  for (i64 number = blockIdx.x; number < *tiles; number += gridDim.x) {
    const Tile<T> tile(parts, count, number);
#pragma unroll
    for (int j = 0; j < EACH; j++)
      if (tile.has(j) && (tile.key[j] & (Key)upper) == found) atomicAdd(&here[(int)(tile.key[j] >> (int)shift) & (int)mask], 1u);
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < BINS; bin += 256)
    if (here[bin]) atomicAdd(&bins[bin], (u64)here[bin]);
}

// The next digit of the k-th largest key; sets all counts to 0 for the one after. One block of 256 threads, 8 bins a thread.
// Moves 32 KiB. Race-free: a thread has its own bins; of all threads one finds its bins to hold the wanted rank, and it alone writes
// *state, after the barrier behind which all have read it.
extern "C" __global__ void __launch_bounds__(256, 2) sparsekit_next_digit(u64* __restrict__ bins, State* __restrict__ state, i64 shift) {
  __shared__ u64 sums[256];
  const u64 key = state->key, wanted = state->wanted;
  u64 mine[8], sum = 0;
  for (int j = 0; j < 8; j++) {
    mine[j] = bins[threadIdx.x * 8 + j];
    bins[threadIdx.x * 8 + j] = 0;
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

// Counts to the sums of those before them: 64 of them, by a whole warp.
__device__ __forceinline__ void sums_before(int* counts) {
  const int lane = threadIdx.x & 31, a = counts[2 * lane], b = counts[2 * lane + 1];
  int sum = a + b;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, d);
    if (lane >= d) sum += other;
  }
  counts[2 * lane] = sum - a - b;
  counts[2 * lane + 1] = sum - b;
}

// What is chosen, in order: all keys larger than state's, and the first `wanted` that equal it. Writes each one's number among all
// values, or where[that] if given, to out, and its key to keys if given. ends_larger[t] and ends_equal[t] count those in tiles 0 ... t.
// A block a tile, blocks loop. Reads each value once, writes 8 bytes for each that is chosen, and its key. Race-free: each has a rank
// of its own; a barrier lies between the warps' counts, their sums, and the use of those.
template <typename T>
__global__ void __launch_bounds__(256, 2) sparsekit_write_topk(const Part* __restrict__ parts, i64 count, const i64* __restrict__ tiles,
                                                               const State* __restrict__ state, const i64* __restrict__ ends_larger,
                                                               const i64* __restrict__ ends_equal, const i64* __restrict__ where,
                                                               i64* __restrict__ out, u64* __restrict__ keys) {
  __shared__ int warp_larger[EACH * 8], warp_equal[EACH * 8];  // of 32 values each, in their order
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u32 before_lane = (1u << lane) - 1;
  const auto bound = (typename Tile<T>::Key)state->key;
  const i64 ties = (i64)state->wanted;
  for (i64 number = blockIdx.x; number < *tiles; number += gridDim.x) {
    const Tile<T> tile(parts, count, number);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      const u32 larger = __ballot_sync(0xffffffffu, tile.has(j) && tile.key[j] > bound);
      const u32 equal = __ballot_sync(0xffffffffu, tile.has(j) && tile.key[j] == bound);
      if (lane == 0) {
        warp_larger[j * 8 + warp] = __popc(larger);
        warp_equal[j * 8 + warp] = __popc(equal);
      }
    }
    __syncthreads();
    if (warp < 2) sums_before(warp ? warp_equal : warp_larger);
    __syncthreads();
    const i64 all_larger = number ? ends_larger[number - 1] : 0, all_equal = number ? ends_equal[number - 1] : 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      const bool is_larger = tile.has(j) && tile.key[j] > bound, is_equal = tile.has(j) && tile.key[j] == bound;
      const u32 larger = __ballot_sync(0xffffffffu, is_larger), equal = __ballot_sync(0xffffffffu, is_equal);
      const i64 larger_before = all_larger + warp_larger[j * 8 + warp] + __popc(larger & before_lane);
      const i64 equal_before = all_equal + warp_equal[j * 8 + warp] + __popc(equal & before_lane);
      if (is_larger || (is_equal && equal_before < ties)) {
        const i64 at = larger_before + (equal_before < ties ? equal_before : ties), value = tile.first_value + tile.first + j * 256;
        out[at] = where ? where[value] : value;
        if (keys) keys[at] = tile.key[j];
      }
    }
    __syncthreads();  // the warps' counts are written anew
  }
}

// Numbers among all values to positions in their parts. A thread a number, grid-stride. Moves 16 bytes each. Race-free: each thread
// has its own.
extern "C" __global__ void __launch_bounds__(256, 2) sparsekit_localise(const Part* __restrict__ parts, i64 count, i64 k, i64* out) {
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < k; i += (i64)gridDim.x * blockDim.x)
    out[i] -= parts[part_of(parts, count, out[i], &Part::first_value)].first_value;
}
