// Kernels of another machine: reads problems with their memory from stdin, runs them, writes the memory
// back. A message: function, bytes of the problem, number of pieces; the problem; then for each piece the
// place of its pointer in the problem, its size and its bytes.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "problem.h"

extern "C" {
const char* lightconv_choose(const char* name);
int lightconv_forward(const Problem* p);
int lightconv_backward(const Problem* p);
int lightconv_step(const void*, void*, const void*, void*, int64_t, int64_t, int64_t, int64_t,
                   int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
int lightconv_residual_forward(const Residual* r);
int lightconv_residual_backward(const Residual* r);
int lightconv_tail_forward(const Tail* t);
int lightconv_tail_backward(const Tail* t);
}

static void read_all(void* to, int64_t bytes) {
  if (bytes && std::fread(to, 1, size_t(bytes), stdin) != size_t(bytes)) std::exit(0);
}

static int64_t run(int64_t function, const void* problem) {
  const Step& s = *static_cast<const Step*>(problem);
  switch (function) {
    case 0: return lightconv_forward(static_cast<const Problem*>(problem));
    case 1: return lightconv_backward(static_cast<const Problem*>(problem));
    case 2:
      return lightconv_step(s.x, s.window, s.weight, s.out, s.B, s.n, s.D, s.H, s.K, s.position,
                            s.dtype, s.weight_dtype, s.shared, s.softmax);
    case 3: return lightconv_residual_forward(static_cast<const Residual*>(problem));
    case 4: return lightconv_residual_backward(static_cast<const Residual*>(problem));
    case 5: return lightconv_tail_forward(static_cast<const Tail*>(problem));
    case 6: return lightconv_tail_backward(static_cast<const Tail*>(problem));
  }
  return 2;
}

int main() {
  lightconv_choose(nullptr);
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
    const int64_t failed = run(head[0], problem.data());
    std::fwrite(&failed, sizeof failed, 1, stdout);
    for (auto [memory, size] : pieces) {
      std::fwrite(memory, 1, size_t(size), stdout);
      std::free(memory);
    }
    std::fflush(stdout);
  }
}
