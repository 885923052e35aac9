// What this machine can do at most: fused multiply-adds from registers, bytes through memory.
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
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

// On a processor of its own: Linux lets a new thread share its parent's for some 10 ms, as long as a
// measurement takes.
static void settle(int i) {
#if defined(__linux__)
  cpu_set_t allowed, own;
  if (pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed)) return;
  CPU_ZERO(&own);
  for (int cpu = 0, left = i % CPU_COUNT(&allowed); cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed) && left-- == 0) CPU_SET(cpu, &own);
  pthread_setaffinity_np(pthread_self(), sizeof own, &own);
#endif
}

// Seconds from the moment when all threads are ready to the end of the last; processor time if `cpu`.
template <class Work>
static double on_threads(int threads, bool cpu, Work work) {
  std::atomic<int> missing{threads};
  std::vector<double> begin(threads), end(threads);
  auto now = [&] {
    timespec at;
    clock_gettime(cpu ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &at);
    return double(at.tv_sec) + 1e-9 * double(at.tv_nsec);
  };
  auto run = [&](int i) {
    settle(i);
    work(i);  // the clock of an idle processor takes time to rise
    for (--missing; missing > 0;) continue;
    begin[i] = now();
    work(i);
    end[i] = now();
  };
  std::vector<std::thread> pool;
  for (int i = 0; i < threads; ++i) pool.emplace_back(run, i);
  for (auto& thread : pool) thread.join();
  double longest = 0;
  for (int i = 0; cpu && i < threads; ++i) longest = std::max(longest, end[i] - begin[i]);
  return cpu ? longest
             : *std::max_element(end.begin(), end.end()) - *std::min_element(begin.begin(), begin.end());
}

extern "C" {

int lanes() { return BYTES / 4; }

// `rounds` times twelve fused multiply-adds on each thread: more than any processor's latency in
// cycles times its vectors a cycle.
double multiply_add(int threads, int cpu, int64_t rounds) {
  std::atomic<float> sink{0};
  return on_threads(threads, cpu, [&](int) {
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
    sink = sum[0];
  });
}

// `rounds` copies with stores that pass the cache.
double copy_bytes(int threads, int cpu, char* to, const char* from, int64_t bytes, int rounds) {
  return on_threads(threads, cpu, [&](int i) {
    const int64_t begin = bytes / 64 * i / threads * 64, end = bytes / 64 * (i + 1) / threads * 64;
    for (int64_t at = begin, round = 0; round < rounds; (at += BYTES) < end || (at = begin, ++round)) {
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

#if defined(__x86_64__)
// A chain of products of integers on each thread, three cycles each.
double multiply_chain(int threads, int cpu, int64_t products) {
  return on_threads(threads, cpu, [&](int) {
    int64_t a = 3;
    for (int64_t i = 0; i < products / 8; ++i)
      asm volatile("imul %0, %0\nimul %0, %0\nimul %0, %0\nimul %0, %0\n"
                   "imul %0, %0\nimul %0, %0\nimul %0, %0\nimul %0, %0" : "+r"(a));
  });
}
#endif
}
