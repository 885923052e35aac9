// A model as a flat list of instructions over rows of numbers, and one run of it. Plain C types:
// Python fills these in (ops/program.py mirrors them) and owns all memory.
//
// A workspace holds the buffers. A buffer is `width` numbers for each row of the run; the buffer
// that starts at column c begins c * rows numbers into the workspace, so that a program runs on any
// number of rows.
#pragma once
#include <cstdint>

#include "problem.h"

enum Panel : int64_t {
  kFloatPanel,
  kSignedPanel,    // int8
  kUnsignedPanel,  // int8, rows stored with 128 added: the kernel of VNNI
  kBf16Panel,
  kPanels
};

enum Op : int64_t {
  kEmbed,         // words and sinusoids of the tokens
  kNorm,          // layer normalisation
  kLinear,        // [+ bias] [relu] [+ residual]
  kQuantize,      // rows as kLinear reads them: int8 and a scale each, or bfloat16
  kGlu,           // first half times sigmoid(second half)
  kConvolve,      // lightconv or dynamicconv: each head sums rows in time
  kAttend,        // self-attention; from: queries, keys, values
  kAttendSource,  // attention to a source; from: queries
  kAverage,       // mean over the past (decoder; with: its sum) or the sequence (encoder)
  kGate,          // sigmoid(a) x + sigmoid(b) g; from: x, g; with: a, b
  kCopy,
  kArrange,       // keys and values as kAttendSource reads them; from: keys, values
  kWindow,        // the rows under a kernel, end to end: [kernel, I]
  kRemember,      // a row goes to its place in a history
  kOps
};

struct Place {
  int64_t column, width, shift;  // of a buffer, its row stride, and where in the row we are
};

struct Instruction {
  int64_t op;
  Place from, to, with;     // with: the second input; column -1: there is none
  int64_t output;           // `to` is memory number output - 1 of the run; 0: it is a buffer
  int64_t I, O;             // numbers read and written per row
  const void* weight;       // packed matrix, embedding, norm's weight, kernels [H, K]
  const float* bias;        // padded to whole panels
  const float* scale;       // int8: one per output
  const int32_t* offset;    // int8: added to each output's sum
  int64_t heads, kernel, left;
  int64_t memory;           // which history or source this layer has
  int64_t relu;             // kLinear
  int64_t panel;            // kLinear, kQuantize: the kind of panel, a Panel
  int64_t chosen;           // kLinear: each sentence has outputs of its own, if the run says so
  int64_t normalize;        // kConvolve without `weight`: how the kernels are normalised
  int64_t narrow;           // kArrange, kAttendSource: keys and values are int8 and scales
  double factor;            // of embeddings, of attention's products; or norm's epsilon
};

struct Run {
  const Instruction* program;
  int64_t count;
  int64_t rows, threads;
  float* workspace;
  void* const* outputs;
  const int64_t* tokens;       // [rows]
  const float* sinusoids;      // [positions, D], from the first token's on
  int64_t pad;
  int64_t longest;             // no row reads more rows than this
  // A decoder's step (`ancestors` is not null). The clock is common to all hypotheses; each has its
  // own position, the number of its tokens before this one, all of them at the times just before.
  int64_t time;                // of the last token of each hypothesis in this run
  int64_t slots;               // rows that a history has room for at each time
  int64_t span;                // times a hypothesis's ancestors are known for
  const int64_t* positions;    // [rows]
  const int64_t* hypotheses;   // [rows]; null: as the rows
  int32_t* ancestors;          // [hypotheses, span]: its slot at time t in column t % span; updated
  float* const* histories;     // per memory: [ring, slots, width], time t at t % ring
  const int64_t* rings;        // per memory
  const int64_t* sentences;    // [rows]: which source sentence
  const int64_t* lengths;      // [sentences]: rows of the source
  int64_t layers;
  // [sentences, layers]: keys and values, as mix.h describes at source_bytes().
  const char* const* sources;
  int64_t choice;              // the first of four columns of it: weight, scale, offset and number
                               // of the outputs that the sentence has; 0: all outputs
  int64_t width;               // of a row of such outputs
  // Sequences laid end to end: an encoder's, or several tokens of each hypothesis, in order.
  const int64_t* begins;       // [rows]: the first row of this row's sequence; null: each is one
  const int64_t* ends;         // [rows]: one past its last
  int64_t* nanoseconds;        // [kOps] added to, or null
};

// Sentences that are searched together: search.h. A table of rows has room for `width` of each
// sentence; Python owns all of them, appends to them and reads what has been found.
struct Search {
  Run* run;                 // a step of the rows; its time, rows and tables change
  float* scores;            // [rows, V], which the program writes
  int64_t V;
  const int32_t* table;     // [sentences, V]: the words of scores; null: all of them
  int64_t width;            // hypotheses of a sentence, live and found
  int64_t room;             // words of one, with EOS
  int64_t draws;            // 0: beam search; 1: each hypothesis draws its word
  int64_t top_k;            // draws among so many; 0: all
  double temperature, top_p;
  int64_t eos, block;       // no n-gram of that length twice; 0: any
  const int64_t* forbidden;
  int64_t forbidden_count;
  // Of each sentence.
  int64_t prefixes;         // columns of `prefix`
  const int32_t* prefix;    // words it begins with, then -1
  int64_t* length;          // of its live hypotheses
  const int64_t *least, *most, *seeds;
  int64_t* found;           // outputs so far
  int64_t *found_lengths, *found_places;  // [sentences, width]
  int32_t* found_words;     // [sentences, width, room]
  double* found_sums;       // of log-probabilities up to each
  // Of each row.
  int64_t *tokens, *positions, *sentences;  // those that `run` reads
  int64_t* places;          // numbers of draws
  double* totals;           // sums of log-probabilities
  int32_t* words;           // [rows, room], those chosen so far
  double* sums;             // [rows, room], up to each
  int64_t steps;            // at most
  double seconds;           // that they go on for; 0: until a sentence has left
  int64_t left;             // sentences that have left, and which
  int64_t* leavers;
};

struct EngineKernels {
  int64_t (*panel)(int64_t kind);  // columns of a packed panel; 0: this kind does not run here
  int64_t (*run)(const Run&, ParallelFor);  // the row whose token is no word, or -1
  void (*topk)(const float* logits, int64_t rows, int64_t V, int64_t stride, int64_t k, float* values,
               int64_t* indices, ParallelFor);
  void (*search)(Search&, ParallelFor);
};
