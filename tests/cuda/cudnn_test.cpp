// Attention through cuDNN: results against the CPU, in parts, in graphs, and which calls go to cuDNN. The simulated
// device runs cuDNN's operation graphs one operation after the other (tests/cudasim/cudnn.cpp).
#include <cstdlib>

#include "tensor/graph.h"
#include "tests/cuda/against_cpu.h"
#include "tests/messages.h"
#if defined(SIMT_CPU) && defined(LOCKSTEP_WITH_CUDNN)
#include "tensor/cuda/cudnn_graph.h"
#include "tests/cudasim/fake.h"
#endif

using namespace lockstep;
using namespace lockstep::testing;

namespace {

#if defined(SIMT_CPU) && defined(LOCKSTEP_WITH_CUDNN)
/// Launches of cuDNN graphs and of our own attention kernels since the last call.
struct Started {
  int64_t cudnn = 0, own = 0;
};
Started started() {
  synchronize(cuda0);
  const auto all = fake::take_launches();
  const auto count = [&](const char* name) { return all.count(name) ? all.at(name) : 0; };
  return {count("cudnn"), count("attention") + count("attention_grad")};
}
constexpr bool counts = true;
#else
struct Started {
  int64_t cudnn = 0, own = 0;
};
Started started() { return {}; }
constexpr bool counts = false;
#endif

struct Problem {
  int64_t batch, heads, groups, queries, keys, width;
  bool causal = false;
  enum Layout { plain, tokens_first, packed } layout = plain;
  int64_t window = 0;
};

/// A tensor (B, heads, tokens, D) in the layout of `p`; packed: a slice of (B, tokens, q, k and v heads, D).
Tensor cut(const Problem& p, int64_t heads, int64_t tokens, DType dtype, uint32_t seed) {
  if (p.layout == Problem::plain) return random_tensor({p.batch, heads, tokens, p.width}, dtype, seed);
  const int64_t first = p.layout == Problem::packed ? 2 : 0;
  return random_tensor({p.batch, tokens, first + heads + first, p.width}, dtype, seed)
      .narrow(2, first, heads)
      .transpose(1, 2);
}

struct Operands {
  Tensor q, k, v, grad, out, lse;
  AttentionArgs args;

  Operands(const Problem& p, DType dtype)
      : q(cut(p, p.heads, p.queries, dtype, 1)),
        k(cut(p, p.groups, p.keys, dtype, 2)),
        v(cut(p, p.groups, p.keys, dtype, 3)),
        grad(cut(p, p.heads, p.queries, dtype, 4)),
        out(cut(p, p.heads, p.queries, dtype, 5)),
        lse(empty({p.batch, p.heads, p.queries}, {f32, cpu})),
        args{.scale = 1 / std::sqrt(double(p.width)), .causal = p.causal, .window = p.window} {}
};

/// Runs forward and backward against the CPU; returns what was launched.
Started compare(const std::string& what, Operands o) {
  started();
  against_cpu(what, {o.q, o.k, o.v}, {o.out, o.lse}, [&](const Kernels& kernels, const Arguments& in, Arguments& to) {
    kernels.attention(in[0], in[1], in[2], {}, o.args, to[0], to[1]);
  });
  table(cpu).attention(o.q, o.k, o.v, {}, o.args, o.out, o.lse);
  against_cpu(
      what + " gradient", {o.grad, o.q, o.k, o.v, o.out, o.lse}, {o.q, o.k, o.v},
      [&](const Kernels& kernels, const Arguments& in, Arguments& to) {
        kernels.attention_grad(in[0], in[1], in[2], in[3], {}, in[4], in[5], o.args, to[0], to[1], to[2]);
      },
      tolerance(o.q.dtype()) * 3);
  return started();
}

}  // namespace

TEST_CASE("cudnn: attention and its gradient") {
  const Problem problems[] = {
      {1, 2, 2, 128, 128, 64, true},
      {2, 4, 2, 128, 128, 64, true, Problem::packed},
      {1, 6, 2, 128, 128, 96, true, Problem::tokens_first},
      {1, 2, 1, 128, 128, 128, true, Problem::tokens_first},
      {1, 1, 1, 128, 128, 256, true},
      {2, 3, 3, 128, 128, 64, false, Problem::packed},
      {1, 4, 1, 128, 256, 8, false, Problem::tokens_first},
      {1, 2, 2, 256, 128, 32},
      {1, 2, 2, 128, 128, 16, true, Problem::plain, 32},
      {1, 4, 2, 256, 256, 8, true, Problem::packed, 65},
  };
  for (const Problem& p : problems) {
    for (const DType dtype : {f16, bf16}) {
      const std::string what = str("cudnn attention ", dtype, " ", p.heads, "/", p.groups, " heads of ", p.width, ", ",
                                   p.queries, " x ", p.keys, p.causal ? " causal" : "");
      const Started did = compare(what, Operands(p, dtype));
      if (!counts) continue;
      CHECK_MESSAGE(did.cudnn == 6, what);  // three orders of threads, forward and backward
      CHECK_MESSAGE(did.own == 0, what);
    }
  }
}

TEST_CASE("cudnn: attention that is not for it goes to our kernels") {
  const Problem usual{1, 2, 2, 128, 128, 16, true};
  const auto own = [](const char* what, const Operands& operands) {
    const Started did = compare(what, operands);
    CHECK_MESSAGE(did.cudnn == 0, what);
    if (counts) CHECK_MESSAGE(did.own > 0, what);
  };
  own("tokens of no whole 128", Operands({1, 1, 1, 120, 120, 16, true}, bf16));
  own("queries of no whole 128", Operands({1, 1, 1, 130, 128, 16}, bf16));
  own("keys of no whole 128", Operands({1, 1, 1, 128, 130, 16}, bf16));
  own("causal with more keys than queries", Operands({1, 1, 1, 128, 256, 16, true}, bf16));
  own("heads of no whole 8", Operands({1, 1, 1, 128, 128, 12}, bf16));
  own("heads wider than any engine's", Operands({1, 1, 1, 128, 128, 264}, f16));
  own("f32", Operands(usual, f32));
  const Started narrow = compare("a narrow window", Operands({1, 1, 1, 256, 256, 16, true, Problem::plain, 63}, bf16));
  // only the forward: the backward of a window runs our kernel
  if (counts) CHECK((narrow.cudnn == 3 && narrow.own > 0));
  Operands o(usual, bf16);
  o.args.dropout = 0.5, o.args.key = {1, 2}, o.args.all_heads = 2;
  own("dropout", o);
  for (const int64_t shift : {4, 8}) {  // row strides that are a multiple of 8 bytes and of 16 bytes
    Operands moved(usual, f16);
    moved.q = random_tensor({1, 2, 128, 16 + shift}, f16, 7).narrow(3, shift, 16);
    const Started did = compare("rows of an odd stride", moved);
    if (counts) CHECK((did.cudnn > 0) == (shift == 8));
  }
}

TEST_CASE("cudnn: attention's backward goes by parts") {
  setenv("LOCKSTEP_CUDNN_WORKSPACE", "1", 1);  // 1 MiB: scores of two heads, 512 x 512 in 16 bits
  const Started did = compare("parts", Operands({2, 4, 2, 512, 512, 8, true, Problem::packed}, bf16));
  unsetenv("LOCKSTEP_CUDNN_WORKSPACE");
  if (counts) CHECK(did.cudnn == 3 * (1 + 4));
}

TEST_CASE("cudnn: attention in a graph") {
  const Operands o({1, 2, 1, 128, 128, 24, true}, bf16), other({1, 1, 1, 128, 128, 40, true}, bf16);
  const auto on_device = [](const Operands& x, const Tensor& out) {
    Tensor to = out, lse = empty(x.lse.shape(), {f32, cuda0});
    table(cuda0).attention(x.q.to(cuda0), x.k.to(cuda0), x.v.to(cuda0), {}, x.args, to, lse);
  };
  const auto empty_out = [](const Operands& x) { return zeros(x.out.shape(), {.dtype = bf16, .device = cuda0}); };
  const Tensor known = empty_out(o), met_late = empty_out(other);
  Graph graph(cuda0);
  const Tensor q = o.q.to(cuda0), k = o.k.to(cuda0), v = o.v.to(cuda0), lse = empty(o.lse.shape(), {f32, cuda0});
  const Tensor late_q = other.q.to(cuda0), late_k = other.k.to(cuda0), late_v = other.v.to(cuda0),
               late_lse = empty(other.lse.shape(), {f32, cuda0});
  started();
  graph.capture([&] {
    Tensor to = known, sums = lse;
    table(cuda0).attention(q, k, v, {}, o.args, to, sums);
    if (!Graph::is_capturing()) return;
    to = met_late, sums = late_lse;
    table(cuda0).attention(late_q, late_k, late_v, {}, other.args, to, sums);
  });
  if (counts) {
    const Started did = started();
    CHECK(did.cudnn == 2);  // the run before the capture, and the capture
    CHECK(did.own == 1);    // first called during the capture: there is no plan yet
  }
  known.fill_(0), met_late.fill_(0);
  graph.replay();
  for (const bool late : {false, true}) {
    const Operands& x = late ? other : o;
    Tensor out = x.out.clone(), sums = x.lse.clone();
    table(cpu).attention(x.q, x.k, x.v, {}, x.args, out, sums);
    check_close(late ? met_late : known, out, tolerance(bf16), "a replay");
  }
  on_device(other, met_late);  // cuDNN has a plan by now
  if (counts) CHECK(started().cudnn == 1);
}

#if defined(SIMT_CPU) && defined(LOCKSTEP_WITH_CUDNN)
TEST_CASE("cudnn: a failure names the engine and the problem") {
  const Operands o({1, 1, 1, 128, 128, 16, true}, bf16);
  Tensor out = zeros(o.out.shape(), {.dtype = bf16, .device = cuda0}), lse = empty(o.lse.shape(), {f32, cuda0});
  const Tensor q = o.q.to(cuda0), k = o.k.to(cuda0), v = o.v.to(cuda0);
  table(cuda0).attention(q, k, v, {}, o.args, out, lse);
  fake::fail_launch(1);
  CHECK_THROWS_WITH(table(cuda0).attention(q, k, v, {}, o.args, out, lse),
                    "[attention] cuDNN's engine 0 failed for bf16, causal, batch 1, heads 1 of 16, keys' 1, tokens 128 "
                    "and 128, strides (2048, 2048, 16) (2048, 2048, 16) (2048, 2048, 16): cudnnBackendExecute: "
                    "CUDNN_STATUS_EXECUTION_FAILED (a launch failed); set LOCKSTEP_CUDNN=0 to run without cuDNN");
}

TEST_CASE("cudnn: the emulator rejects whatever cuDNN rejects") {
  using cuda::Descriptor;
  struct Sizes {
    int64_t id, a, b, c, d;
    cudnnDataType_t type = CUDNN_DATA_HALF;
    bool is_inner = false;
  };
  const auto tensor = [](const Sizes& s) {
    const int64_t size[] = {s.a, s.b, s.c, s.d}, stride[] = {s.b * s.c * s.d, s.c * s.d, s.d, 1};
    Descriptor made(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, s.id);
    made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, s.type);
    made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, size);
    made.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    made.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, s.is_inner);
    made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t(16)).finalize();
    return made;
  };
  const auto product = [&](const Sizes& a, const Sizes& b, const Sizes& c) {
    Descriptor how(CUDNN_BACKEND_MATMUL_DESCRIPTOR), made(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT).finalize();
    made.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how).set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensor(a));
    made.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensor(b)).set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, tensor(c));
    made.finalize();
    return made;
  };
  const auto exponent = [&](const Sizes& x, const Sizes& y, const Sizes* b = nullptr) {
    Descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR), made(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, CUDNN_POINTWISE_EXP);
    how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT).finalize();
    made.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    made.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensor(x)).set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensor(y));
    if (b) made.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensor(*b));
    made.finalize();
    return made;
  };
  const Sizes a{1, 2, 4, 8, 16}, b{2, 2, 2, 16, 8}, c{3, 2, 4, 8, 8};
  CHECK(product(a, b, c).ok());
  const auto why = [](const Descriptor& made) { return made.why(); };
  CHECK(why(product(a, {2, 2, 2, 8, 16}, c)) == "cudnnBackendFinalize: CUDNN_STATUS_BAD_PARAM (matmul: sizes)");
  CHECK(why(product(a, {2, 2, 3, 16, 8}, c)) == "cudnnBackendFinalize: CUDNN_STATUS_BAD_PARAM (matmul: sizes)");
  CHECK(why(product(a, {2, 2, 2, 16, 8, CUDNN_DATA_BFLOAT16}, c)).ends_with("(matmul: types)"));
  CHECK(why(product({1, 2, 4, 8, 0}, b, c)).ends_with("(tensor: sizes and strides below 1)"));
  CHECK(exponent(c, {4, 2, 4, 8, 8}).ok());
  CHECK(why(exponent(c, {4, 2, 4, 8, 4})).ends_with("(pointwise: an input does not broadcast to the output)"));
  CHECK(why(exponent(c, {4, 2, 4, 8, 8}, &c)).ends_with("(pointwise: the operands do not fit the mode)"));
  Descriptor half_done(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  half_done.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, int64_t(1)).finalize();
  CHECK(why(half_done).ends_with("is not set)"));
  Descriptor wrong_type(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  wrong_type.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_FLOAT, 1.f);
  CHECK(wrong_type.status() == CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
  Descriptor late = tensor(a);
  late.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, int64_t(2));
  CHECK(why(late).ends_with("of a finalized descriptor)"));
  Descriptor unfinished(CUDNN_BACKEND_TENSOR_DESCRIPTOR), operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, unfinished);
  CHECK(operation.status() == CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);

  cudnnHandle_t handle = nullptr;
  REQUIRE(cudnnCreate(&handle) == CUDNN_STATUS_SUCCESS);
  const auto graph = [&](std::vector<Descriptor> operations) {
    return why(cuda::graph_of(operations, {.handle = handle}));
  };
  const auto list = [](auto... operations) {
    std::vector<Descriptor> all;
    (all.push_back(std::move(operations)), ...);
    return all;
  };
  const Sizes inner{9, 2, 4, 8, 8, CUDNN_DATA_HALF, true}, last{5, 2, 4, 8, 8};
  CHECK(graph(list(product(a, b, inner), exponent(inner, last))) == "");
  CHECK(graph(list(exponent(inner, last), product(a, b, inner))).ends_with("is used before it is made)"));
  CHECK(graph(list(product(a, b, inner))).ends_with("(graph: a virtual tensor is not used)"));
  CHECK(graph(list(product(a, b, c), exponent(c, c))).ends_with("(graph: two operations write one tensor)"));
  CHECK(graph(list(product(a, b, c), exponent({3, 2, 4, 8, 8, CUDNN_DATA_FLOAT}, last)))
            .ends_with("(graph: two tensors have the same id)"));
}
#endif
