// Cases with memory of exactly the right size, on real threads, for the sanitizers to watch: so many
// random ones, or, compiled with FUZZER, those that libFuzzer makes of its bytes.
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "cases.h"
#include "problem.h"

extern "C" {
const char* lightconv_choose(const char* name);
void lightconv_use_threads(ParallelFor function);
}

static int32_t on_threads(int64_t begin, int64_t end, int64_t grain, ParallelBody body, void* context) {
  std::vector<std::thread> threads;
  const int64_t n = std::min<int64_t>(4, (end - begin + grain - 1) / grain);
  for (int64_t i = 0; i < n; ++i)
    threads.emplace_back(body, begin + (end - begin) * i / n, begin + (end - begin) * (i + 1) / n,
                         context);
  for (auto& thread : threads) thread.join();
  return 0;
}

static void choose(uint32_t number) {
  const char* sets[] = {"base", "avx2", "avx512"};
  if (!lightconv_choose(sets[number % 3])) lightconv_choose(nullptr);
}

#ifdef FUZZER

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  generator.seed(data[0]);
  strange = data[1] % 2;
  lightconv_use_threads(data[1] / 2 % 4 ? nullptr : on_threads);
  choose(data[1] / 8);
  const bool is_program = data[2] % 2;
  tried = data + 3, tried_end = data + size;
  if (const char* what = is_program ? wrong_program() : wrong_operator()) {
    std::fprintf(stderr, "wrong: %s\n", what);
    std::abort();
  }
  return 0;
}

#else

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 100;
  generator.seed(argc > 2 ? unsigned(std::atoi(argv[2])) : 0u);
  lightconv_use_threads(on_threads);
  for (int i = 0; i < count; ++i) {
    choose(uint32_t(i));
    for (const char* what : {wrong_operator(), wrong_program()})
      if (what) {
        std::printf("wrong: case %d, %s\n", i, what);
        return 1;
      }
  }
  std::printf("%d cases\n", count);
  return 0;
}

#endif
