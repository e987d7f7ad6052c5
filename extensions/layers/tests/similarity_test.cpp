// Layers with two inputs: gradients, training, construction without memory, rejected calls. Values are golden cases
// (golden/similarity.safetensors).
#include "extensions/layers/similarity.h"

#include <doctest/doctest.h>

#include "autograd/gradcheck.h"
#include "extensions/layers/embedding_bag.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "tests/messages.h"
#include "tests/nn/properties.h"
#include "tests/threads.h"

using namespace lockstep;
using namespace lockstep::nn;

namespace {

/// Scores how well a vector of 4 numbers and a bag of words fit together.
struct Pairs : Layer<Pairs> {
  Linear image{{.in = 4, .out = 3}};
  EmbeddingBag words{{.num = 5, .dim = 3}};
  Bilinear both{{.in1 = 3, .in2 = 3, .out = 2}};
  Variable forward(const Variable& x, const Tensor& index, const Tensor& offsets) {
    const Variable images = image(x), said = words(index, offsets);
    return both(images, said) + CosineSimilarity()(images, said).unsqueeze(1) +
           PairwiseDistance({.keepdim = true})(images, said);
  }
  void fields(Fields& f) override { f("image", image)("words", words)("both", both); }
};

const Tensor word_index() { return Tensor::from<int64_t>({1, 4, 2, 0, 3}); }
const Tensor word_offsets() { return Tensor::from<int64_t>({0, 2, 2}); }

}  // namespace

TEST_CASE("similarity: gradients of a model of all layers, and it learns") {
  const Threads one(1);  // too small for more threads
  manual_seed(11);
  Pairs net;
  CHECK(net.parameters().size() == 5);
  const Variable x(randn({3, 4}, {.dtype = f64}), true);
  net.to(f64);
  std::vector<Variable> inputs = net.parameters();
  inputs.push_back(x);
  const auto run = [&](const std::vector<Variable>&) { return net(x, word_index(), word_offsets()); };
  CHECK(gradcheck(run, inputs) == "");

  net.to(f32);
  optim::AdamW optimizer(net.parameters(), {.lr = 3e-2});
  const Tensor rows = x.tensor().to(f32), target = Tensor::from<int64_t>({1, 0, 1});
  const auto [first, last] = testing::first_and_last(
      optimizer, 60, [&] { return cross_entropy(net(rows, word_index(), word_offsets()), target); });
  CHECK(last < 0.2 * first);
}

TEST_CASE("similarity: a Bilinear that is built empty is filled bit-identically to plain construction") {
  testing::check_built_empty([] { return Bilinear({.in1 = 2, .in2 = 3, .out = 2}); });
}

TEST_CASE("similarity: invalid options are rejected") {
  CHECK_REJECTED(Bilinear, ({.in1 = 2, .in2 = 0, .out = 1}), "sizes > 0, got in1 2, in2 0 and out 1");
  CHECK_REJECTED(Bilinear, ({.in1 = 2, .in2 = 3, .out = 1})(zeros({4, 2}), zeros({5, 3})),
                 "inputs (..., 2) and (..., 3) of the same shape except the last dim, got (4, 2) and (5, 3)");
  CHECK_ERROR(CosineSimilarity()(zeros({4}), zeros({4})), "[CosineSimilarity]");
  CHECK_ERROR(CosineSimilarity()(zeros({4, 2}), zeros({4, 3})), "[CosineSimilarity]");
  CHECK_REJECTED(PairwiseDistance, ({.p = 0}), "p > 0, got 0");
  CHECK_ERROR(PairwiseDistance()(zeros({4, 2}), zeros({3, 2})), "(4, 2)");
}
