// What this machine can do at most: fused multiply-adds from registers, bytes through memory.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif

#if defined(__x86_64__)
#define REGISTER "v"
#else
#define REGISTER "w"
#endif
typedef float V __attribute__((vector_size(BYTES)));

template <class Work>
static void on_threads(int threads, Work work) {
  std::vector<std::thread> pool;
  for (int i = 1; i < threads; ++i) pool.emplace_back(work, i);
  work(0);
  for (auto& thread : pool) thread.join();
}

extern "C" {

int lanes() { return BYTES / 4; }

// `rounds` times twelve fused multiply-adds on each thread.
void multiply_add(int threads, int64_t rounds) {
  volatile float sink = 0;
  on_threads(threads, [&](int) {
    // Twelve named sums: an array would tempt the compiler to keep them in memory.
    V a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{}, i{}, j{}, k{}, l{};
    const V m = V{} + 0.999f, p = V{} + 0.001f;
    for (int64_t round = 0; round < rounds; ++round) {
      a = a * m + p, b = b * m + p, c = c * m + p, d = d * m + p, e = e * m + p, f = f * m + p;
      g = g * m + p, h = h * m + p, i = i * m + p, j = j * m + p, k = k * m + p, l = l * m + p;
      asm volatile("" : "+" REGISTER(a), "+" REGISTER(b), "+" REGISTER(c), "+" REGISTER(d), "+" REGISTER(e), "+" REGISTER(f));
      asm volatile("" : "+" REGISTER(g), "+" REGISTER(h), "+" REGISTER(i), "+" REGISTER(j), "+" REGISTER(k), "+" REGISTER(l));
    }
    const V sum = a + b + c + d + e + f + g + h + i + j + k + l;
    sink = sink + sum[0];
  });
}

// Copies with stores that pass the cache.
void copy_bytes(int threads, char* to, const char* from, int64_t bytes) {
  on_threads(threads, [&](int i) {
    const int64_t begin = bytes / 64 * i / threads * 64, end = bytes / 64 * (i + 1) / threads * 64;
    for (int64_t at = begin; at < end; at += BYTES) {
#if defined(__AVX512F__)
      _mm512_stream_si512((__m512i*)(to + at), _mm512_load_si512((const __m512i*)(from + at)));
#elif defined(__AVX__)
      _mm256_stream_si256((__m256i*)(to + at), _mm256_load_si256((const __m256i*)(from + at)));
#else
      memcpy(to + at, from + at, BYTES);
#endif
    }
  });
}
}
