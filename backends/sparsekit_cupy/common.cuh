// What all kernels share: integer names, exact arithmetic, the storage dtypes and the wide types they are accumulated in.
//
// CuPy compiles with -ftz=true, and NVRTC contracts a * b + c: either would give other bits than the CPU. Arithmetic that must
// be exact is therefore spelled in PTX without .ftz, rounded to nearest at each step. Loads and stores never change bits, but
// a cast between float and double, a comparison of floats, abs and min do flush subnormals: use the functions below.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define SK_FLOAT(name, instruction)                                                 \
  __device__ __forceinline__ float name(float a, float b) {                         \
    float r;                                                                        \
    asm(instruction ".f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));                 \
    return r;                                                                       \
  }                                                                                 \
  __device__ __forceinline__ double name(double a, double b) {                      \
    double r;                                                                       \
    asm(instruction ".f64 %0, %1, %2;" : "=d"(r) : "d"(a), "d"(b));                 \
    return r;                                                                       \
  }
SK_FLOAT(add, "add.rn")
SK_FLOAT(sub, "sub.rn")
SK_FLOAT(mul, "mul.rn")
SK_FLOAT(divide, "div.rn")
#undef SK_FLOAT

__device__ __forceinline__ float root(float a) { float r; asm("sqrt.rn.f32 %0, %1;" : "=f"(r) : "f"(a)); return r; }
__device__ __forceinline__ double root(double a) { double r; asm("sqrt.rn.f64 %0, %1;" : "=d"(r) : "d"(a)); return r; }
__device__ __forceinline__ double to_double(float a) { double r; asm("cvt.f64.f32 %0, %1;" : "=d"(r) : "f"(a)); return r; }
__device__ __forceinline__ double to_double(double a) { return a; }
__device__ __forceinline__ float to_float(double a) { float r; asm("cvt.rn.f32.f64 %0, %1;" : "=f"(r) : "d"(a)); return r; }
__device__ __forceinline__ float to_float(float a) { return a; }

// 16-bit floats are stored as bit patterns.
struct Half { u16 bits; };
struct BFloat16 { u16 bits; };
__device__ __forceinline__ float to_float(Half a) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(a.bits)); return r; }
__device__ __forceinline__ float to_float(BFloat16 a) { return __uint_as_float((u32)a.bits << 16); }
__device__ __forceinline__ double to_double(Half a) { return to_double(to_float(a)); }
__device__ __forceinline__ double to_double(BFloat16 a) { return to_double(to_float(a)); }
__device__ __forceinline__ bool is_nan(float a) { return (__float_as_uint(a) & 0x7fffffffu) > 0x7f800000u; }
__device__ __forceinline__ bool is_nan(double a) { return (__double_as_longlong(a) & 0x7fffffffffffffffll) > 0x7ff0000000000000ll; }

template <typename T> struct Complex { T re, im; };

// The wide type that values of T are accumulated in (the table in sparsekit/_protocol.py), the way there and back.
template <typename T> struct Wide { typedef T type; };
template <> struct Wide<Half> { typedef float type; };
template <> struct Wide<BFloat16> { typedef float type; };
template <> struct Wide<float> { typedef double type; };
template <> struct Wide<Complex<float>> { typedef Complex<double> type; };

template <typename T> __device__ __forceinline__ T widen(T a) { return a; }
__device__ __forceinline__ float widen(Half a) { return to_float(a); }
__device__ __forceinline__ float widen(BFloat16 a) { return to_float(a); }
__device__ __forceinline__ double widen(float a) { return to_double(a); }
__device__ __forceinline__ Complex<double> widen(Complex<float> a) { return {to_double(a.re), to_double(a.im)}; }

// Rounded to nearest even. narrow<T>(w), with a pointer that only carries the type.
template <typename T> __device__ __forceinline__ T narrow(T w, T*) { return w; }
__device__ __forceinline__ Half narrow(float w, Half*) { Half r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(w)); return r; }
__device__ __forceinline__ BFloat16 narrow(float w, BFloat16*) {
  u32 u = __float_as_uint(w);
  if (is_nan(w)) return {(u16)(u >> 16 | 0x40)};
  return {(u16)((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
__device__ __forceinline__ float narrow(double w, float*) { return to_float(w); }
__device__ __forceinline__ Complex<float> narrow(Complex<double> w, Complex<float>*) { return {to_float(w.re), to_float(w.im)}; }

// V values that lie side by side, moved by one instruction of up to 16 bytes. The address must be a multiple of their size.
template <typename T, int V> struct alignas(sizeof(T) * V) Pack { T at[V]; };
template <int V, typename T> __device__ __forceinline__ Pack<T, V> load(const T* p) { return *reinterpret_cast<const Pack<T, V>*>(p); }
template <int V, typename T> __device__ __forceinline__ void store(T* p, const Pack<T, V>& x) { *reinterpret_cast<Pack<T, V>*>(p) = x; }
