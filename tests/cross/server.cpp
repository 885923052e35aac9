// Kernels of another machine: reads problems with their memory from stdin, runs them, writes the memory
// back. A message: kernel, bytes of the problem, number of pieces; the problem; then for each piece the
// place of its pointer in the problem, its size and its bytes.
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "problem.h"

namespace base {
extern const Kernels kernels;
}

static void read_all(void* to, int64_t bytes) {
  if (bytes && std::fread(to, 1, size_t(bytes), stdin) != size_t(bytes)) std::exit(0);
}

template <class T>
static void run(void (*kernel)(const T&, ParallelFor), const void* problem) {
  kernel(*static_cast<const T*>(problem), nullptr);
}

static void run(int64_t number, const void* problem) {  // in the order of remote.py
  const Kernels& k = base::kernels;
  switch (number) {
    case 0: return run(k.forward, problem);
    case 1: return run(k.backward, problem);
    case 2: return run(k.step, problem);
    case 3: return run(k.residual_forward, problem);
    case 4: return run(k.residual_backward, problem);
    case 5: return run(k.tail_forward, problem);
    case 6: return run(k.tail_backward, problem);
    case 7: return run(k.attend, problem);
  }
  std::abort();
}

int main() {
  for (;;) {
    int64_t head[3];
    read_all(head, sizeof head);
    std::vector<int64_t> problem(size_t(head[1] / 8));
    read_all(problem.data(), head[1]);
    std::vector<std::pair<char*, int64_t>> pieces;
    for (int64_t i = 0; i < head[2]; ++i) {
      int64_t place[2];
      read_all(place, sizeof place);
      char* memory = static_cast<char*>(std::malloc(size_t(place[1])));
      read_all(memory, place[1]);
      problem[size_t(place[0] / 8)] = reinterpret_cast<int64_t>(memory);
      pieces.emplace_back(memory, place[1]);
    }
    run(head[0], problem.data());
    for (auto [memory, size] : pieces) {
      std::fwrite(memory, 1, size_t(size), stdout);
      std::free(memory);
    }
    std::fflush(stdout);
  }
}
