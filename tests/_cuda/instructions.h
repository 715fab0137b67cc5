// The meaning of PTX instructions in C++. Registers are unsigned integers of their width; see _ptx.py.
#pragma once
#include "runtime.h"

template <class A, class B> inline constexpr bool same = false;
template <class A> inline constexpr bool same<A, A> = true;
template <class T> inline constexpr bool is_float = same<T, float> || same<T, double> || same<T, f16>;
template <class T> inline constexpr bool is_signed = T(-1) < T(0);
template <class T> inline constexpr u32 WIDTH = 8 * sizeof(T);
template <u32 bytes> struct UnsignedOf;
template <> struct UnsignedOf<1> { typedef u8 type; };
template <> struct UnsignedOf<2> { typedef u16 type; };
template <> struct UnsignedOf<4> { typedef u32 type; };
template <> struct UnsignedOf<8> { typedef u64 type; };
template <class T> using Unsigned = typename UnsignedOf<sizeof(T)>::type;
template <class T> struct TwiceOf;
template <> struct TwiceOf<i16> { typedef i32 type; };
template <> struct TwiceOf<u16> { typedef u32 type; };
template <> struct TwiceOf<i32> { typedef i64 type; };
template <> struct TwiceOf<u32> { typedef u64 type; };
template <> struct TwiceOf<i64> { typedef __int128 type; };
template <> struct TwiceOf<u64> { typedef unsigned __int128 type; };
template <class T> using Twice = typename TwiceOf<T>::type;

// A register read as a T, and a result as the bits that go to a register.
template <class T, class Register> inline T as(Register r) {
  if constexpr (sizeof(T) == sizeof(Register) && !same<T, bool>) return __builtin_bit_cast(T, r);
  else return T(r);
}
template <class T> inline auto bits(T x) {
  if constexpr (is_float<T>) return __builtin_bit_cast(Unsigned<T>, x);
  else return x;
}

// ---- memory

template <class T> inline const T* read(u64 address, u32 count, How how, Site site) {
  gpu_access(address, sizeof(T) * count, how, site);
  return (const T*)address;
}
template <class T> inline T* write(u64 address, u32 count, How how, Site site) {
  gpu_access(address, sizeof(T) * count, how, site);
  return (T*)address;
}
template <class T> inline T* local(u64 address, u32 count, Site site) {
  gpu_local_access(address, sizeof(T) * count, site);
  return (T*)address;
}

// ---- floats: GPUs give one NaN for all in single precision and below

template <class T> inline T canonical(T x) { return x; }
inline float canonical(float x) { return x != x ? as<float>(0x7fffffffu) : x; }
inline float flush(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.f, x) : x; }
inline float saturate(float x) { return x >= 0.f ? (x < 1.f ? x : 1.f) : 0.f; }

template <class T> inline T op_fma(T a, T b, T c) {
  if constexpr (same<T, float>) return canonical(__builtin_fmaf(a, b, c));
  else return __builtin_fma(a, b, c);
}
template <class T> inline T op_sqrt(T a) {
  if constexpr (same<T, float>) return canonical(__builtin_sqrtf(a));
  else return __builtin_sqrt(a);
}
template <class T> inline T op_rcp(T a) { return canonical(T(1) / a); }
template <class T> inline T op_rsqrt(T a) { return canonical(T(1) / op_sqrt(a)); }
inline float op_ex2(float a) { return canonical(__builtin_exp2f(a)); }
inline float op_lg2(float a) { return canonical(__builtin_log2f(a)); }
template <class T> inline T op_copysign(T a, T b) { return T(__builtin_copysign(double(b), double(a))); }

// ---- arithmetic of integers (which wraps) and floats

template <class T> inline T op_add(T a, T b) {
  if constexpr (is_float<T>) return canonical(a + b);
  else return T(Unsigned<T>(a) + Unsigned<T>(b));
}
template <class T> inline T op_sub(T a, T b) {
  if constexpr (is_float<T>) return canonical(a - b);
  else return T(Unsigned<T>(a) - Unsigned<T>(b));
}
template <class T> inline T op_mul(T a, T b) {
  if constexpr (is_float<T>) return canonical(a * b);
  else return T(u64(a) * u64(b));
}
template <class T> inline T op_mul_hi(T a, T b) { return T(Twice<T>(a) * Twice<T>(b) >> WIDTH<T>); }
template <class T> inline Twice<T> op_mul_wide(T a, T b) { return Twice<T>(a) * Twice<T>(b); }
template <class T> inline T op_div(T a, T b, Site site) {
  if constexpr (is_float<T>) return canonical(a / b);
  else {
    if (!b) gpu_fail("integer division by zero", site);
    return is_signed<T> && b == T(-1) ? T(0 - Unsigned<T>(a)) : T(a / b);
  }
}
template <class T> inline T op_rem(T a, T b, Site site) {
  if (!b) gpu_fail("integer division by zero", site);
  return is_signed<T> && b == T(-1) ? T(0) : T(a % b);
}
template <class T> inline T op_neg(T a) {
  if constexpr (is_float<T>) return -a;
  else return T(0 - Unsigned<T>(a));
}
template <class T> inline T op_abs(T a) {
  if constexpr (same<T, float>) return __builtin_fabsf(a);
  else if constexpr (same<T, double>) return __builtin_fabs(a);
  else return a < 0 ? op_neg(a) : a;
}
// Of floats, that which is no NaN; -0 lies below 0.
template <class T> inline bool below(T a, T b) {
  if constexpr (is_float<T>) return a < b || (a == b && i64(__builtin_signbit(a)) > i64(__builtin_signbit(b)));
  else return a < b;
}
template <class T> inline T op_min(T a, T b) {
  if (a != a) return b != b ? canonical(b) : b;
  return below(b, a) ? b : a;
}
template <class T> inline T op_max(T a, T b) {
  if (a != a) return b != b ? canonical(b) : b;
  return below(a, b) ? b : a;
}

// ---- bits

template <class T> inline T op_and(T a, T b) { return T(a & b); }
template <class T> inline T op_or(T a, T b) { return T(a | b); }
template <class T> inline T op_xor(T a, T b) { return T(a ^ b); }
template <class T> inline T op_not(T a) {
  if constexpr (same<T, bool>) return !a;
  else return T(~a);
}
template <class T> inline T op_shl(T a, u32 n) { return n < WIDTH<T> ? T(Unsigned<T>(a) << n) : T(0); }
template <class T> inline T op_shr(T a, u32 n) { return n < WIDTH<T> ? T(a >> n) : is_signed<T> && a < 0 ? T(-1) : T(0); }
template <class T> inline u32 op_popc(T a) { return u32(__builtin_popcountll(a)); }
template <class T> inline u32 op_clz(T a) { return a ? u32(__builtin_clzll(a)) - (64 - WIDTH<T>) : WIDTH<T>; }
template <class T> inline u32 op_bfind(T a) {
  const Unsigned<T> x = is_signed<T> && a < 0 ? ~a : a;
  return x ? 63 - u32(__builtin_clzll(x)) : ~0u;
}
template <class T> inline T op_brev(T a) {
  T r = 0;
  for (u32 i = 0; i < WIDTH<T>; i++) r = T(r << 1) | (a >> i & 1);
  return r;
}
template <class T> inline T low_bits(u32 n) { return n < WIDTH<T> ? T((T(1) << n) - 1) : T(~T(0)); }
template <class T> inline T op_bfi(T a, T b, u32 from, u32 length) {
  from &= 255, length &= 255;
  if (from >= WIDTH<T>) return b;
  const T mask = T(low_bits<T>(length) << from);
  return (b & ~mask) | (T(a << from) & mask);
}
template <class T> inline T op_bfe(T a, u32 from, u32 length) {
  from &= 255, length &= 255;
  if (!length) return 0;
  if (from + length > WIDTH<T>) return op_shr(a, from);  // the sign fills up
  const u32 above = WIDTH<T> - from - length;
  return op_shr(op_shl(a, above), above + from);
}
inline u32 op_prmt(u32 a, u32 b, u32 selectors) {
  const u64 bytes = u64(b) << 32 | a;
  u32 r = 0;
  for (u32 i = 0; i < 4; i++) {
    const u32 selector = selectors >> 4 * i;
    u8 byte = u8(bytes >> 8 * (selector & 7));
    if (selector & 8) byte = byte & 128 ? 255 : 0;
    r |= u32(byte) << 8 * i;
  }
  return r;
}
inline u32 op_lop3(u32 a, u32 b, u32 c, u32 table) {
  u32 r = 0;
  for (u32 i = 0; i < 8; i++) {
    if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
  return r;
}
inline u32 op_shf_l(u32 a, u32 b, u32 n) { return u32((u64(b) << 32 | a) << n >> 32); }  // n <= 32
inline u32 op_shf_r(u32 a, u32 b, u32 n) { return u32((u64(b) << 32 | a) >> n); }

// ---- conversions

inline float from_half(f16 h) { return canonical(float(h)); }
inline f16 to_half(float x) { return x != x ? as<f16>(u16(0x7fff)) : f16(x); }
inline f16 to_half(double x) { return x != x ? as<f16>(u16(0x7fff)) : f16(x); }
// Of a float that is integral already.
template <class T, class Float> inline T to_integer(Float x) {
  constexpr Unsigned<T> top = Unsigned<T>(1) << (WIDTH<T> - 1);
  constexpr Float end = is_signed<T> ? Float(top) : Float(top) * 2;  // the first that is too large
  if (x != x) return same<Float, double> || sizeof(T) == 8 ? T(top) : T(0);
  if (x >= end) return is_signed<T> ? T(top - 1) : T(-1);
  if (x < (is_signed<T> ? -end : Float(0))) return is_signed<T> ? T(top) : T(0);
  return T(x);
}

// ---- the warp

enum Operation : u32 { SHFL_UP, SHFL_DOWN, SHFL_BFLY, SHFL_IDX, VOTE, MATCH, REDUX };

struct Shuffled { u32 value; bool in_range; };
inline Shuffled op_shfl(Operation mode, u32 value, u32 b, u32 c, u32 mask, Site site) {
  const u32 lane = gpu_place->lane, segment = c >> 8 & 31, clamp = c & 31;
  const i32 low = i32(lane & segment), limit = low | i32(clamp & ~segment);
  const i32 from = mode == SHFL_UP ? i32(lane - (b & 31)) : mode == SHFL_DOWN ? i32(lane + (b & 31))
                 : mode == SHFL_BFLY ? i32(lane ^ (b & 31)) : low | i32(b & 31 & ~segment);
  const bool in_range = mode == SHFL_UP ? from >= limit : from <= limit;
  const u32 source = in_range ? u32(from) : lane;
  mask &= gpu_place->lanes;
  const u64* values = gpu_exchange(mode, mask, value, site);
  if (!(mask >> source & 1)) gpu_fail("a shuffle from a lane that the mask does not name", site);
  return {u32(values[source]), in_range};
}
inline u32 op_vote_ballot(bool predicate, u32 mask, Site site) {
  mask &= gpu_place->lanes;
  const u64* values = gpu_exchange(VOTE, mask, predicate, site);
  u32 r = 0;
  for (u32 i = 0; i < 32; i++) r |= u32((mask >> i & 1) && values[i]) << i;
  return r;
}
inline bool op_vote_any(bool predicate, u32 mask, Site site) { return op_vote_ballot(predicate, mask, site); }
inline bool op_vote_all(bool predicate, u32 mask, Site site) { return op_vote_ballot(predicate, mask, site) == (mask & gpu_place->lanes); }
template <class T> inline u32 op_match_any(T value, u32 mask, Site site) {
  mask &= gpu_place->lanes;
  const u64* values = gpu_exchange(MATCH, mask, value, site);
  u32 r = 0;
  for (u32 i = 0; i < 32; i++) r |= u32((mask >> i & 1) && T(values[i]) == value) << i;
  return r;
}
template <class T, class Op> inline T op_redux(T value, u32 mask, Op op, Site site) {
  mask &= gpu_place->lanes;
  const u64* values = gpu_exchange(REDUX, mask, u64(value), site);
  T r = 0;
  for (u32 i = 0, first = 1; i < 32; i++) {
    if (!(mask >> i & 1)) continue;
    r = first ? T(values[i]) : op(r, T(values[i]));
    first = 0;
  }
  return r;
}

// ---- atomics: threads change places at calls of the runtime only, so the rest is one step

template <class T, class Op> inline T op_atom(u64 address, Op op, Site site) {
  T* p = write<T>(address, 1, ATOMIC, site);
  const T old = *p;
  *p = op(old);
  return old;
}

// A backward jump.
inline void jump_back(Site site) {
  if (--gpu_jumps_left < 0) gpu_fail("an endless loop, or one far too long for a test", site);
}
