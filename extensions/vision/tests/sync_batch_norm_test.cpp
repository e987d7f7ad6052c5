// SyncBatchNorm against BatchNorm on the whole batch.
#include <doctest/doctest.h>

#include "autograd/autocast.h"
#include "extensions/vision/sync_batch_norm.h"
#include "tests/apart.h"
#include "tests/devices.h"
#include "tests/parallel/util.h"

using namespace lockstep;
using namespace lockstep::parallel;
using namespace ::testing;

namespace {

struct Result {
  Tensor out, grad_x, grad_weight, grad_bias, mean, var;
};

/// One training forward and backward of `bn`; the loss weights outputs by `w`.
Result run(nn::BatchNorm& bn, const Tensor& x, const Tensor& w) {
  const Variable input(x.clone(), true);
  const Variable out = bn(input);
  sum(mul(out, Variable(w))).backward();
  const auto grad_of = [](const Variable& v) { return v.defined() ? v.grad() : Tensor(); };
  return {out.tensor(), input.grad(), grad_of(bn.weight), grad_of(bn.bias), bn.running_mean, bn.running_var};
}

}  // namespace

TEST_CASE_FIXTURE(OnCpu, "sync batch norm equals batch norm on the whole batch, with uneven and empty parts") {
  struct Row {
    std::vector<int64_t> rows;
    Shape tail;
    bool affine;
    double offset;
  };
  const std::vector<Row> table{
      {{4}, {3}, true, 0},
      {{4, 4}, {3}, true, 0},
      {{3, 5}, {2, 7}, true, 0},
      {{2, 6, 1}, {3, 4, 5}, true, 10},
      {{8, 0}, {3, 2}, true, 0},
      {{1, 1, 1, 1}, {5}, true, 0},
      {{2, 3, 4}, {3, 2, 2}, false, 0},
      {{1, 0, 2, 3, 1, 0, 4, 5}, {2, 3, 3}, true, -3},
  };
  for (const Row& row : table) {
    int64_t total = 0;
    for (const int64_t n : row.rows) total += n;
    Shape shape{total};
    for (const int64_t size : row.tail) shape.push_back(size);
    CAPTURE(shape);
    manual_seed(11);
    const Tensor x = add_scalar(randn(shape), row.offset), w = randn(shape), scale = rand({row.tail[0]}),
                 shift = randn({row.tail[0]});
    const nn::BatchNorm::Options options{.channels = row.tail[0], .affine = row.affine};
    const auto set_up = [&](nn::BatchNorm& bn) {
      if (!row.affine) return;
      bn.weight.tensor().copy_(scale);
      bn.bias.tensor().copy_(shift);
    };
    nn::BatchNorm full(options);
    set_up(full);
    const Result expected = run(full, x, w);
    const auto parts = on_ranks<Result>(int(row.rows.size()), [&](int rank) {
      int64_t begin = 0;
      for (int r = 0; r < rank; ++r) begin += row.rows[size_t(r)];
      nn::BatchNorm bn(options);
      set_up(bn);
      CHECK(convert_sync_batch_norm(bn) == 1);
      return run(bn, x.narrow(0, begin, row.rows[size_t(rank)]), w.narrow(0, begin, row.rows[size_t(rank)]));
    });
    std::vector<Tensor> outs, grads;
    Tensor grad_weight, grad_bias;
    for (const Result& part : parts) {
      outs.push_back(part.out);
      grads.push_back(part.grad_x);
      CHECK(equal(part.mean, parts[0].mean));
      CHECK(equal(part.var, parts[0].var));
      if (!row.affine) continue;
      grad_weight = grad_weight.defined() ? add(grad_weight, part.grad_weight) : part.grad_weight;
      grad_bias = grad_bias.defined() ? add(grad_bias, part.grad_bias) : part.grad_bias;
    }
    CHECK(max_difference(cat(outs), expected.out) < 2e-6);
    CHECK(max_difference(cat(grads), expected.grad_x) < 2e-6);
    CHECK(max_difference(parts[0].mean, expected.mean) < 1e-6);
    CHECK(max_difference(parts[0].var, expected.var) < 1e-6);
    if (row.affine) CHECK(max_difference(grad_weight, expected.grad_weight) < 2e-5);
    if (row.affine) CHECK(max_difference(grad_bias, expected.grad_bias) < 1e-5);
  }
}

TEST_CASE_FIXTURE(OnCpu,
                  "sync batch norm: a model of several layers is converted, trains under DDP, and evaluates alone") {
  struct Net : nn::Layer<Net> {
    nn::Conv2d conv{{.in = 1, .out = 3, .kernel = {3, 3}}};
    nn::BatchNorm2d norm{{.channels = 3}};
    nn::Sequential tail{nn::Flatten(), nn::Linear({.in = 3 * 4 * 4, .out = 5}), nn::BatchNorm1d({.channels = 5})};
    Variable forward(const Variable& x) { return tail(relu(norm(conv(x)))); }
    void fields(nn::Fields& f) override { f("conv", conv)("norm", norm)("tail", tail); }
  };
  manual_seed(2);
  const Tensor x = randn({8, 1, 6, 6}), y = randint(0, 5, {8});
  Net full;
  Tensors expected;
  const auto state = full.state();
  nn::State start;
  for (const auto& [name, tensor] : state) start.emplace_back(name, tensor.clone());
  cross_entropy(full(x), y).backward();
  expected = copy_gradients(full);
  for (const int ranks : {2, 4}) {
    on_ranks(ranks, [&](int rank) {
      Net net;
      net.load_state(start);
      CHECK(convert_sync_batch_norm(net) == 2);
      DistributedDataParallel ddp(net);
      const int64_t rows = 8 / ranks;
      cross_entropy(ddp(x.narrow(0, rank * rows, rows)), y.narrow(0, rank * rows, rows)).backward();
      CHECK(distance(copy_gradients(net), expected) < 2e-6);
      CHECK(max_difference(net.norm.running_var, full.norm.running_var) < 1e-6);
      net.eval();
      const int64_t before = dist::world().traffic().collectives;
      if (rank == 0) net(x);  // in eval mode there is no collective, so one rank may run alone
      CHECK(dist::world().traffic().collectives == before);
    });
  }
}

TEST_CASE_FIXTURE(OnCpu, "sync batch norm: 16 bits, options, and rejected inputs") {
  on_ranks(2, [&](int rank) {
    manual_seed(3);
    const Tensor x = randn({6, 4, 2}), w = randn({6, 4, 2});
    nn::BatchNorm full({.channels = 4, .momentum = std::nullopt, .track = true});
    const auto group = dist::world().new_group({0, 1}, "norm");
    nn::BatchNorm bn({.channels = 4, .momentum = std::nullopt, .track = true}),
        untracked({.channels = 4, .track = false});
    for (nn::Module* one : {&bn, &untracked}) CHECK(convert_sync_batch_norm(*one) == 1);
    for (int step = 0; step < 2; ++step) {
      const Result expected = run(full, x, w), part = run(bn, x.narrow(0, rank * 3, 3), w.narrow(0, rank * 3, 3));
      CHECK(max_difference(part.out, expected.out.narrow(0, rank * 3, 3)) < 2e-6);
      CHECK(max_difference(bn.running_mean, full.running_mean) < 1e-6);
    }
    CHECK(max_difference(untracked(x.narrow(0, rank * 3, 3)).tensor(), full(x).tensor().narrow(0, rank * 3, 3)) < 2e-6);
    {
      const Autocast low(bf16);
      CHECK(bn(x.to(bf16)).dtype() == f32);
    }
    full.to(bf16);
    bn.to(bf16);
    const Result expected = run(full, x.to(bf16), w.to(bf16)),
                 part = run(bn, x.narrow(0, rank * 3, 3).to(bf16), w.narrow(0, rank * 3, 3).to(bf16));
    CHECK(part.grad_x.dtype() == bf16);
    CHECK(max_difference(part.out, expected.out.narrow(0, rank * 3, 3)) < 0.05);
    CHECK(max_difference(part.grad_x, expected.grad_x.narrow(0, rank * 3, 3)) < 0.05);
    nn::BatchNorm small({.channels = 4});
    small.across_ranks = bn.across_ranks;
    CHECK_ERROR(small(rank ? zeros({0, 4}) : ones({1, 4})),
                "expected more than one value per channel over all ranks, got 1");
    CHECK_ERROR(sync_batch_norm(ones({4}), {}, {}, {}, {}, 0.1, 1e-5, group), "expected x (N, C, ...), got (4)");
    CHECK_ERROR(sync_batch_norm(ones({4, 1}), {}, {}, {}, {}, 0.1, 1e-5, nullptr), "expected a process group");
  });
}
