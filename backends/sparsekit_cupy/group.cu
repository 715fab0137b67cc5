// Entries sorted by coordinate, and where each coordinate's run begins.
//
// An entry is one 64-bit word: its key (the coordinate's bits, the last dimension lowest) above its position in the input, so that
// one sort of words is a stable sort by key and nothing has to be carried along.
#include "common.cuh"

static const int TILE = 2048;  // words that a block of 256 threads looks at in turn

// word[i] |= index[i] << shift; the first dimension's call begins with the position alone (or with 0, if bits is 0 by `position`).
// An index outside 0 ... dim - 1 sets *bad and loses its upper bits: it never reaches another field of the word.
// Grid-stride, a thread an entry. Moves 16 bytes an entry, 8 more unless first. Each thread writes its own word; *bad atomically.
extern "C" __global__ void __launch_bounds__(256, 2) sparsekit_pack(const i64* __restrict__ index, i64 n, i64 dim, i64 bits, i64 shift,
                                                                 i64 first, i64 position, u64* __restrict__ word, int* bad) {
  const u64 mask = bits ? ~0ull >> (64 - bits) : 0;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    const u64 x = (u64)index[i];
    if (x >= (u64)dim) atomicOr(bad, 1);
    const u64 before = first ? (position ? (u64)i : 0) : word[i];
    word[i] = bits ? before | (x & mask) << shift : before;
  }
}

__device__ __forceinline__ bool is_head(const u64* word, i64 i, int position_bits) {
  return i == 0 || word[i] >> position_bits != word[i - 1] >> position_bits;
}

// How many runs begin in each tile of TILE words. A block a tile, blocks loop. Reads 8 bytes a word.
// Race-free: only thread 0 of the one block that has the tile writes its count.
extern "C" __global__ void __launch_bounds__(256, 2) sparsekit_count_heads(const u64* __restrict__ word, i64 n, i64 position_bits,
                                                                        i64* __restrict__ tile_heads) {
  for (i64 tile = blockIdx.x; tile * TILE < n; tile += gridDim.x) {
    i64 heads = 0;
    for (int k = 0; k < TILE; k += 256) {
      const i64 i = tile * TILE + k + threadIdx.x;
      heads += __syncthreads_count(i < n && is_head(word, i, (int)position_bits));
    }
    if (threadIdx.x == 0) tile_heads[tile] = heads;
  }
}

// Where each run begins, start[0 ... runs], the last being n; and, if inverse is given, the run of each input entry.
// tile_ends[t] counts the runs that begin in tiles 0 ... t. Reads 8 bytes a word; writes 8 a run, and 8 an entry at random for
// inverse. Race-free: each run has one head, each input position one word; shared counts are read between two barriers.
extern "C" __global__ void __launch_bounds__(256, 2) sparsekit_write_starts(const u64* __restrict__ word, i64 n, i64 position_bits,
                                                                         const i64* __restrict__ tile_ends, i64* __restrict__ start,
                                                                         i64* __restrict__ inverse) {
  __shared__ int warp_heads[8];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u64 position_mask = position_bits ? ~0ull >> (64 - position_bits) : 0;
  for (i64 tile = blockIdx.x; tile * TILE < n; tile += gridDim.x) {
    i64 before = tile ? tile_ends[tile - 1] : 0;
    for (int k = 0; k < TILE; k += 256) {
      const i64 i = tile * TILE + k + threadIdx.x;
      const bool head = i < n && is_head(word, i, (int)position_bits);
      const u32 heads = __ballot_sync(0xffffffffu, head);
      if (lane == 0) warp_heads[warp] = __popc(heads);
      __syncthreads();
      i64 run = before + __popc(heads & (0xffffffffu >> (31 - lane))) - 1;  // heads up to and including this word
      for (int w = 0; w < 8; w++) {
        if (w < warp) run += warp_heads[w];
        before += warp_heads[w];
      }
      if (head) start[run] = i;
      if (i < n && inverse) inverse[word[i] & position_mask] = run;
      if (i == n - 1) start[run + 1] = n;
      __syncthreads();  // warp_heads is written anew
    }
  }
}

// The coordinates of each run, read at its first entry, and its length if counts is given. A thread a run, grid-stride.
// Reads 16 bytes a run and 8 a dimension at random, writes 8 a dimension. Race-free: each thread has its own column.
extern "C" __global__ void __launch_bounds__(256, 2) sparsekit_coordinates(const u64* __restrict__ word, i64 position_bits,
                                                                        const i64* __restrict__ start, i64 runs,
                                                                        const i64* __restrict__ indices, i64 n, i64 ndim,
                                                                        i64* __restrict__ out, i64* __restrict__ counts) {
  const u64 position_mask = position_bits ? ~0ull >> (64 - position_bits) : 0;
  for (i64 run = (i64)blockIdx.x * blockDim.x + threadIdx.x; run < runs; run += (i64)gridDim.x * blockDim.x) {
    const i64 first = start[run];
    const u64 entry = word[first] & position_mask;
    for (i64 d = 0; d < ndim; d++) out[d * runs + run] = indices[d * n + entry];
    if (counts) counts[run] = start[run + 1] - first;
  }
}

// Clears *sorted where a coordinate is not larger than the one before it, in row-major order. A thread an entry, grid-stride.
// Reads 8 bytes an entry for each dimension up to the first that differs. Race-free: *sorted changes atomically.
extern "C" __global__ void __launch_bounds__(256, 2) sparsekit_is_coalesced(const i64* __restrict__ indices, i64 n, i64 ndim, int* sorted) {
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x + 1; i < n; i += (i64)gridDim.x * blockDim.x) {
    bool larger = false;
    for (i64 d = 0; d < ndim; d++) {
      const i64 now = indices[d * n + i], before = indices[d * n + i - 1];
      if (now == before) continue;
      larger = now > before;
      break;
    }
    if (!larger) atomicAnd(sorted, 0);
  }
}
