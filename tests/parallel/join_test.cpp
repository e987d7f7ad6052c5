// Uneven inputs: ranks that run out of data join the others' collectives until all are done.
// A number in a test's name is a row of docs/faults.md.
#include <doctest/doctest.h>

#include "optim/optim.h"
#include "tests/parallel/util.h"

using namespace lockstep;
using namespace lockstep::parallel;
using namespace testing;

namespace {

struct Normed : nn::Layer<Normed> {
  nn::Linear linear{{.in = 2, .out = 2}};
  nn::BatchNorm norm{{.channels = 2}};
  Variable forward(const Variable& x) { return norm(linear(x)); }
  void fields(nn::Fields& f) override { f("linear", linear)("norm", norm); }
};

void take_batches(DistributedDataParallel& ddp, int n) {
  for (int i = 0; i < n; ++i) sum(ddp(ones({1, 2}))).backward();
}

}  // namespace

TEST_CASE("join 43: the mean counts every rank, or those with data; all end with the same parameters") {
  for (const bool by_active : {false, true})
    for (const bool overlap : {false, true})
      for (const int ranks : {1, 2, 3, 4}) {
        INFO("by_active ", by_active, ", overlap ", overlap, ", ranks ", ranks);
        // Rank r has r + 1 batches with d loss / d weight = 2. The final weight shows how many ranks each step averaged
        // over.
        const auto weights = on_ranks<double>(ranks, [&](int rank) {
          struct Net : nn::Layer<Net> {
            Variable w{zeros({2}), true};
            void fields(nn::Fields& f) override { f("w", w); }
          } net;
          DistributedDataParallel ddp(net, {.overlap = overlap});
          optim::SGD opt(net.parameters(), {.lr = 1});
          {
            const auto join = ddp.join(by_active);
            for (int step = 0; step <= rank; ++step) {
              opt.zero_grad();
              sum(ddp.call([&] { return net.w * 2.; })).backward();
              opt.step();
            }
          }
          return net.w.tensor()[0].item();
        });
        double expected = 0;
        for (int step = 0; step < ranks; ++step) expected -= by_active ? 2. : 2. * (ranks - step) / ranks;
        CHECK(weights[0] == doctest::Approx(expected));
        for (const double w : weights) CHECK(w == weights[0]);
      }
}

TEST_CASE("join: buffers come from a rank that still has data; a rank may have none at all, also the first") {
  for (const auto& batches : std::vector<std::vector<int>>{{0, 2, 3}, {3, 0, 0}, {2, 2, 2}, {0, 0, 0}, {1, 4, 1}}) {
    alike(3, [&](int rank) {
      manual_seed(uint64_t(rank));
      Normed net;
      DistributedDataParallel ddp(net, {.bucket_mib = 1e-6});
      optim::AdamW opt(net.parameters(), {.lr = 1e-2});
      {
        const auto join = ddp.join();
        for (int step = 0; step < batches[size_t(rank)]; ++step) {
          opt.zero_grad();
          sum(mul(ddp(randn({4, 2})), Variable(randn({4, 2})))).backward();
          opt.step();
        }
      }
      Tensors all = copy_parameters(net);
      // If all ranks end together, buffers are not synchronized, as without join().
      if (batches[0] != batches[1] || batches[0] == 0)
        for (auto& b : net.named_buffers()) all[b.name] = b.tensor.clone();
      return all;
    });
  }
}

TEST_CASE("join: with accumulation, gradients of a rank's last micro-batches still count; the model stays usable") {
  on_ranks(2, [&](int rank) {
    nn::Linear layer({.in = 2, .out = 1, .bias = false});
    DistributedDataParallel ddp(layer, {.find_unused_parameters = true});
    const auto backward = [&](double value) { sum(ddp(full({1, 2}, value))).backward(); };
    std::vector<float> observed;
    {
      const auto join = ddp.join();
      {
        const auto local = ddp.no_sync();
        backward(1);
        if (rank == 1) backward(2);
      }
      if (rank == 1) {
        backward(4);
        observed = layer.weight.grad().to_vector<float>();
      }
    }
    if (rank == 1) CHECK(observed == std::vector<float>{4, 4});  // (1 + (1 + 2 + 4)) / 2
    layer.zero_grad();
    backward(rank + 1);
    CHECK(layer.weight.grad().to_vector<float>() == std::vector<float>{1.5, 1.5});
  });
}

TEST_CASE("join: throw_on_early_end tells every rank, and errors inside are not held back") {
  const auto ends_early = [](int rank) {
    nn::Linear layer = linear(2, 1);
    DistributedDataParallel ddp(layer);
    const auto join = ddp.join(false, true);
    take_batches(ddp, rank == 1 ? 1 : 3);
  };
  CHECK_ERROR(on_ranks(3, ends_early), "[join] rank 1 has run out of data while others still have some");
  const auto breaks = [](int rank) {
    nn::Linear layer = linear(2, 1);
    DistributedDataParallel ddp(layer);
    const auto join = ddp.join();
    CHECK_ERROR(ddp.join(), "expected no other join()");
    take_batches(ddp, 1);
    if (rank == 1) fail("broken batch");
    take_batches(ddp, 1);
  };
  CHECK_ERROR(on_ranks(2, breaks), "broken batch");
}

TEST_CASE("join 43: without join, an Error on the waiting ranks names the rank that ended early") {
  const std::string text = message([] {
    on_ranks(3, [](int rank) {
      nn::Linear layer = linear(2, 1);
      DistributedDataParallel ddp(layer);
      take_batches(ddp, rank == 1 ? 1 : 3);
    });
  });
  // Its leaving and its closed channel race; either may be reported first.
  CHECK_MESSAGE(contains(text, "rank 1 "), text);
}
