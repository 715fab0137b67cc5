// Adam on the rows that a gradient names (Kingma and Ba 2015), fused with the sum of its duplicates.
#include "optim.cuh"

template <typename T> struct Element { T p, m, v, w; };  // w: the largest v so far, or v itself

template <typename T> __device__ __forceinline__ T moved(T p, T m, T w, T size, T e) {
  return sub(p, mul(size, divide(m, add(root(w), e))));
}

// Adam without modes. 2-D blocks: x goes over packs of V columns, y over runs; the grid's x over runs, its y over columns; both
// loop. Reads each gradient value once and 8 bytes a word for each thread in x, moves each touched row of param and states once in
// and once out. Writes nothing where *bad. Race-free: each thread has its own elements of rows that no other run names.
template <typename P, typename S, int V>
__global__ void __launch_bounds__(256, 2) sparsekit_adam_plain(const u64* __restrict__ word, i64 position_bits, const i64* __restrict__ start,
                                                            const i64* __restrict__ runs, const i64* __restrict__ rows, const int* __restrict__ bad,
                                                            const P* __restrict__ values, i64 width,
                                                            const typename Wide<P>::type* __restrict__ partial, P* param, S* exp_avg,
                                                            S* exp_avg_sq, i64 flags, double step_size, double beta1, double beta2, double eps,
                                                            double weight_decay) {
  typedef typename Real<P, S>::type T;
  if (*bad) return;
  const Gradient<P> gradient = {word, position_bits, start, runs, rows, values, width, partial};
  T* const as = nullptr;
  const T rate1 = real(sub(1.0, beta1), as), rate2 = real(sub(1.0, beta2), as);
  const T size = real(step_size, as), e = real(eps, as), decay = real(weight_decay, as);
  const i64 count = *runs;
  for (i64 r = (i64)blockIdx.x * blockDim.y + threadIdx.y; r < count; r += (i64)gridDim.x * blockDim.y) {
    const Run run = gradient.run(r);
    const i64 row = rows[run.entry(run.first)];
    for (i64 c = ((i64)blockIdx.y * blockDim.x + threadIdx.x) * V; c < width; c += (i64)gridDim.y * blockDim.x * V) {
      const i64 at = row * width + c;
      auto p = load<V>(param + at);
      auto m = load<V>(exp_avg + at), v = load<V>(exp_avg_sq + at);
      const auto sum = gradient.template sum<V>(run, c, flags & MAXIMIZE, as);
#pragma unroll
      for (int i = 0; i < V; i++) {
        const T x = real(p.at[i], as);
        const T g = weight_decay != 0 ? add(sum.at[i], mul(decay, x)) : sum.at[i];
        m.at[i] = add(m.at[i], mul(sub(g, m.at[i]), rate1));
        v.at[i] = add(v.at[i], mul(sub(mul(g, g), v.at[i]), rate2));
        p.at[i] = narrow(moved(x, m.at[i], v.at[i], size, e), (P*)nullptr);
      }
      store<V>(param + at, p);
      store<V>(exp_avg + at, m);
      store<V>(exp_avg_sq + at, v);
    }
  }
}

// What the steps of a replay need besides the row.
struct Rates {
  double beta1, beta2, eps;
  bool lazy, amsgrad;
};

// Whether all the updates of steps before + 1 ... end together stay below the resolution of p: a geometric series.
template <typename T> __device__ __forceinline__ bool at_rest(const Element<T>& x, double scale, double resolution, bool shrinks) {
  const double p = fabs(to_double(x.p)), m = fabs(to_double(x.m));
  if (m == 0 || !(p < __longlong_as_double(0x7ff0000000000000ll))) return true;
  return shrinks && mul(m, scale) <= mul(mul(resolution, p), root(to_double(x.w)));
}

// Steps last + 1 ... end with a zero gradient, one by one, on the row in scratch, until it is at rest; returns how many. Each lane
// touches its own columns only. `count` updates came before them.
template <typename T>
__device__ i64 replay(Element<T>* scratch, i64 width, i64 last, i64 count, i64 end, const Rates& rates, const History& history) {
  T* const as = nullptr;
  const double unit = sizeof(T) == 8 ? 1.0 / (1ll << 53) : 1.0 / (1 << 24);
  const double ratio = rates.amsgrad ? rates.beta1 : divide(rates.beta1, root(rates.beta2));
  const double scale = mul(history.largest(end), divide(ratio, mul(sub(1.0, ratio), sub(1.0, rates.beta1))));
  const T beta1 = real(rates.beta1, as), beta2 = real(rates.beta2, as);
  double b1 = power(rates.beta1, count), b2 = power(rates.beta2, count);
  for (i64 i = 0; i < end - last; i++) {
    if (i % REST_EVERY == 0) {
      const double resolution = rates.lazy ? mul(unit, history.factor(last + i, end)) : unit;
      bool rest = true;
      for (i64 c = this_lane(); c < width; c += 32) rest = rest && at_rest(scratch[c], scale, resolution, ratio < 1);
      if (__all_sync(ALL_LANES, rest)) return i;
    }
    b1 = mul(b1, rates.beta1);
    b2 = mul(b2, rates.beta2);
    const double correction = root(sub(1.0, b2));
    const T size = real(divide(mul(history.lr(last + i + 1), correction), sub(1.0, b1)), as), e = real(mul(rates.eps, correction), as);
    const T decay = real(rates.lazy ? history.factor(last + i, last + i + 1) : 1.0, as);
    for (i64 c = this_lane(); c < width; c += 32) {
      Element<T> x = scratch[c];
      if (rates.lazy) x.p = mul(x.p, decay);
      x.m = mul(x.m, beta1);
      x.v = mul(x.v, beta2);
      if (!rates.amsgrad) x.w = x.v;
      x.p = moved(x.p, x.m, x.w, size, e);
      scratch[c] = x;
    }
  }
  return end - last;
}

// Adam with modes: decoupled decay (Loshchilov and Hutter 2019), the largest v (Reddi et al. 2018), one v a row, and rows that make
// up for the steps they sat out. In a flush, that alone, for all rows of the table (`table_rows` of them). Blocks of 8 warps, a warp
// a row, warps loop. Moves what the plain kernel moves, and the row arrays; a rowwise v reads the gradient twice; a replay keeps the
// row in scratch (warps, width). Writes nothing where *bad. Race-free: a row belongs to one warp, a column to one lane, what there
// is once a row to lane 0, after __syncwarp.
template <typename P, typename S>
__global__ void __launch_bounds__(256, 1) sparsekit_adam(const u64* __restrict__ word, i64 position_bits, const i64* __restrict__ start,
                                                      const i64* __restrict__ runs, const i64* __restrict__ rows, const int* __restrict__ bad,
                                                      const P* __restrict__ values, i64 width,
                                                      const typename Wide<P>::type* __restrict__ partial, i64 table_rows, P* param,
                                                      S* exp_avg, S* exp_avg_sq, S* max_exp_avg_sq, i64* row_step, i64* last_step,
                                                      const double* __restrict__ history_rows, const i64* __restrict__ row_numbers,
                                                      i64 key0, i64 key1, i64 key2, i64 key3, i64 flags, i64 step, double lr, double decay,
                                                      double step_size, double beta1, double beta2, double eps, double weight_decay,
                                                      typename Real<P, S>::type* scratch) {
  typedef typename Real<P, S>::type T;
  T* const as = nullptr;
  const bool flush = flags & FLUSH, lazy = flags & LAZY, rowwise = flags & ROWWISE, at_random = flags & AT_RANDOM;
  const bool exact = flags & EXACT, masked = !(flags & (EXACT | DECAYED)), amsgrad = max_exp_avg_sq;
  if (!flush && *bad) return;
  const Gradient<P> gradient = {word, position_bits, start, runs, rows, values, width, partial};
  const i64 columns_sq = rowwise ? 1 : width;
  const Table<P> params = {param, width, key0, row_numbers};
  const Table<S> ms = {exp_avg, width, key1, row_numbers}, vs = {exp_avg_sq, columns_sq, key2, row_numbers};
  const Table<S> ws = {max_exp_avg_sq, columns_sq, key3, row_numbers};
  const History history = {history_rows};
  const Rates rates = {beta1, beta2, eps, lazy, amsgrad};
  const T rate1 = real(sub(1.0, beta1), as), rate2 = real(sub(1.0, beta2), as);
  const i64 lane = this_lane(), end = flush ? step : step - 1, count = flush ? table_rows : *runs;
  Element<T>* const mine = reinterpret_cast<Element<T>*>(scratch) + this_warp() * width;

  for (i64 r = this_warp(); r < count; r += all_warps()) {
    const Run run = flush ? Run() : gradient.run(r);
    const i64 row = flush ? r : rows[run.entry(run.first)];
    if (flush && last_step[row] >= step) continue;
    const i64 last = up_to_date(last_step, row, end), idle = end - last;
    i64 updates = row_step ? row_step[row] : 0;
    const bool replays = exact && idle && !(row_step && updates == 0);
    T row_v = T(), row_w = T();  // of a rowwise v
    if (rowwise) {
      row_v = vs.load(row, 0, as);
      row_w = amsgrad ? ws.load(row, 0, as) : row_v;
    }
    const auto loaded = [&](i64 c) {
      Element<T> x = {params.load(row, c, as), ms.load(row, c, as), row_v, row_w};
      if (!rowwise) {
        x.v = vs.load(row, c, as);
        x.w = amsgrad ? ws.load(row, c, as) : x.v;
      }
      return x;
    };

    // The steps that the row sat out.
    i64 done = 0;
    if (replays) {
      for (i64 c = lane; c < width; c += 32) mine[c] = loaded(c);
      done = replay(mine, width, last, row_step ? updates : last, end, rates, history);
    }
    const T aged1 = real(power(beta1, idle - done), as), aged2 = real(power(beta2, idle - done), as);
    const T decayed = real(idle && lazy ? history.factor(last + done, end) : 1.0, as);
    const auto caught_up = [&](i64 c) {
      Element<T> x = replays ? mine[c] : loaded(c);
      if (idle && !masked) {
        x.m = mul(x.m, aged1);
        x.v = mul(x.v, aged2);
        if (!amsgrad) x.w = x.v;
      }
      if (idle && lazy) x.p = mul(x.p, decayed);
      return x;
    };
    if (updates > 0 && !masked) updates += idle;

    // This step.
    const auto gradient_of = [&](i64 c, T p) {
      const T g = gradient.template sum<1>(run, c, flags & MAXIMIZE, as).at[0];
      return weight_decay != 0 ? add(g, mul(real(weight_decay, as), p)) : g;
    };
    T mean = T();
    if (rowwise && !flush) {
      MeanOfSquares squares;
      for (i64 c = lane; c - lane < width; c += 32) squares.push(c < width ? gradient_of(c, caught_up(c).p) : T(), width - (c - lane));
      mean = real(squares.mean(width), as);
    }
    double size = step_size, b2 = 0;
    if (row_step) {
      if (!flush) updates++;
      b2 = power(beta2, updates);
      size = divide(mul(lr, root(sub(1.0, b2))), sub(1.0, power(beta1, updates)));
    } else if (exact) b2 = power(beta2, step);
    const T rounded_size = real(size, as), e = real(exact ? mul(eps, root(sub(1.0, b2))) : eps, as);

    T new_v = T(), new_w = T();  // of a rowwise v: row_v and row_w stay what caught_up reads
    for (i64 c = lane; c < width; c += 32) {
      Element<T> x = caught_up(c);
      if (!flush) {
        const T g = gradient_of(c, x.p);
        if (decay != 1) x.p = mul(x.p, real(decay, as));
        x.m = add(x.m, mul(sub(g, x.m), rate1));
        x.v = add(x.v, mul(sub(rowwise ? mean : mul(g, g), x.v), rate2));
        x.w = amsgrad ? larger(x.w, x.v) : x.v;
        x.p = moved(x.p, x.m, x.w, rounded_size, e);
      }
      params.store(row, c, x.p, at_random);
      ms.store(row, c, x.m, at_random);
      if (!rowwise) {
        vs.store(row, c, x.v, at_random);
        if (amsgrad) ws.store(row, c, x.w, at_random);
      }
      new_v = x.v;
      new_w = x.w;
    }
    __syncwarp();
    if (lane == 0) {
      if (rowwise && width) {
        vs.store(row, 0, new_v, at_random);
        if (amsgrad) ws.store(row, 0, new_w, at_random);
      }
      if (row_step) row_step[row] = updates;
      if (last_step) last_step[row] = step;
    }
  }
}
