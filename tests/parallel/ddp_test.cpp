// DistributedDataParallel: buckets, views, no_sync, buffers, state.
#include <doctest/doctest.h>

#include <cmath>
#include <optional>

#include "autograd/agreed.h"
#include "optim/optim.h"
#include "optim/optimizer.h"
#include "parallel/flat.h"
#include "parallel/gradient_sum.h"
#include "parallel/naive_ddp.h"
#include "tensor/memory.h"
#include "tests/parallel/util.h"

using namespace lockstep;
using namespace lockstep::parallel;
using namespace testing;

namespace {

/// The gradient of `left` is complete first, because `left` is used last.
Variable left_before_right(Branches& net) {
  const Variable x(ones({2, 3}));
  const Variable right = net.right(x);
  return net.left(x) * right;
}

}  // namespace

TEST_CASE("DDP: gradients equal one process's gradients on the whole batch; the naive form agrees") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    CAPTURE(ranks);
    Tensors entire;
    const Tensors grads = alike(ranks, [&](int rank) {
      manual_seed(3);
      const Tensor x = randn({24, 6}), y = randint(0, 3, {24});
      Mlp net, single, naive;
      for (Mlp* other : {&single, &naive}) other->load_state(net.state());
      if (rank == 0) {
        cross_entropy(single(x), y).backward();
        entire = copy_gradients(single);
      }
      DistributedDataParallel ddp(net);
      const int64_t rows = 24 / ranks;
      const Tensor mine = x.narrow(0, rank * rows, rows), labels = y.narrow(0, rank * rows, rows);
      cross_entropy(ddp(mine), labels).backward();
      cross_entropy(naive(mine), labels).backward();
      average_gradients(naive, dist::world());
      CHECK(differing(copy_gradients(naive), copy_gradients(net)) == "");
      return copy_gradients(net);
    });
    CHECK(distance(entire, grads) < 1e-6);
  }
}

TEST_CASE("DDP: .grad are views of one flat tensor a bucket, also after zero_grad, keep, and rebuilding") {
  on_ranks(2, [&](int) {
    manual_seed(1);
    Mlp net;
    DistributedDataParallel ddp(net);
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    Ref<Storage> memory;
    for (int step = 0; step < 4; ++step) {
      opt.zero_grad(step == 3);
      loss_of(net, step, 0).backward();
      const Tensor first = net.a.weight.grad();
      for (auto& p : net.parameters()) CHECK(p.grad().storage() == first.storage());
      CHECK(first.storage()->bytes() == net.parameter_count() * 4);
      if (step > 1) CHECK(first.storage() == memory);  // no new memory from the second step on
      memory = first.storage();
      opt.step();
    }
  });
}

TEST_CASE(
    "DDP: buckets start while backward still runs, in their order on every rank; without overlap all start at the "
    "end") {
  for (const bool overlap : {true, false}) {
    const auto logs = on_ranks<std::string>(3, [&](int rank) {
      Branches net;
      std::string log;
      const CommHook hook = [&log](GradBucket& bucket, dist::ProcessGroup& group) -> std::function<void()> {
        log += str(bucket.index, " ");
        return
            [work = group.all_reduce(bucket.gradients, {.op = dist::ReduceOp::mean, .async = true}), &log]() mutable {
              work.wait();
              log += "w ";
            };
      };
      DistributedDataParallel ddp(
          net, {.bucket_mib = 1e-6, .overlap = overlap, .find_unused_parameters = true, .hook = hook});
      for (int step = 0; step < 2; ++step) {
        net.zero_grad();
        net.use_right = rank != 1;  // on rank 1 `right` is unused, so its bucket is ready from the start
        log.clear();
        const int first = net.left.weight.on_grad([&](const Tensor&) {
          log += "left ";
          return Tensor();
        });
        sum(ddp(ones({2, 3}))).backward();
        net.left.weight.remove_hook(first);
      }
      return log;
    });
    for (const std::string& log : logs) {
      CAPTURE(log);
      std::string launched;
      for (const char c : log)
        if (c >= '0' && c <= '9') launched += c;
      CHECK(launched == "012345");
      // On rank 1 `left` has the first gradient.
      if (&log != &logs[1]) CHECK((log.find('0') < log.find("left")) == overlap);
      CHECK(log.find('w') > log.find('5'));
    }
  }
}

TEST_CASE("DDP: micro-batches take log2(accumulation) + 1 copies of the gradients, and one afterwards") {
  on_ranks(1, [&](int) {
    Mlp net;
    DistributedDataParallel ddp(net);
    const int64_t bytes = net.parameter_count() * 4, largest = net.b.weight.numel() * 4;
    for (int step = 0; step < 3; ++step) {
      net.zero_grad();
      const int64_t before = memory_report().category[size_t(Memory::gradient)].current;
      CHECK(before == (step < 2 ? 0 : bytes));  // buckets are rebuilt after the first step
      reset_peak_memory();
      for (int m = 0; m < 16; ++m) {
        std::optional<DistributedDataParallel::NoSync> local;
        if (m < 15) local.emplace(ddp);
        loss_of(net, step, m).backward();
      }
      const MemoryUse use = memory_report().category[size_t(Memory::gradient)];
      CHECK(use.current == bytes);
      CHECK(use.peak <= 5 * bytes + 2 * largest);
    }
  });
}

TEST_CASE("DDP: buckets follow reverse registration, then the order of gradients; caps and dtypes") {
  const Variable small(zeros({4}), true), large(zeros({1000}), true), wide(zeros({4}, {.dtype = f64}), true);
  using Indices = std::vector<std::vector<size_t>>;
  CHECK(plan_buckets({small, small, small}, 32, 32) == Indices{{0, 1}, {2}});
  CHECK(plan_buckets({small, large, small, small}, 48, 48) == Indices{{0}, {1}, {2, 3}});
  CHECK(plan_buckets({small, small, small, small}, 1 << 20, 16) == Indices{{0}, {1, 2, 3}});
  CHECK(plan_buckets({small, wide, small, wide}, 1 << 20, 1 << 20) == Indices{{0, 2}, {1, 3}});
  CHECK(plan_units({4, 4, 4, 20, 1, 0, 4}, {"a", "a", "b", "a", "b", "a", "a"}, 8) ==
        Indices{{0, 1}, {3}, {2, 4}, {5, 6}});
  CHECK(plan_units({}, {}, 8).empty());
  CHECK_ERROR(plan_units({1}, {"a"}, 0), "expected cap > 0 and one kind for each size, got cap 0");
  on_ranks(2, [&](int) {
    Branches net;
    net.never.requires_grad_(false);
    CHECK_ERROR(DistributedDataParallel(net, {.bucket_mib = 0}), "expected a finite bucket_mib > 0, got 0");
    DistributedDataParallel ddp(net, {.bucket_mib = 1e-6});
    using Names = std::vector<std::vector<std::string>>;
    const Names reverse{{"right.bias"}, {"right.weight"}, {"left.bias"}, {"left.weight"}};
    CHECK(ddp.buckets() == reverse);
    sum(left_before_right(net)).backward();
    CHECK(ddp.buckets().size() == 4);
    CHECK(ddp.buckets() != reverse);
    CHECK(ddp.buckets().back()[0].starts_with("right"));
    sum(left_before_right(net)).backward();
  });
}

TEST_CASE(
    "DDP: no_sync moves nothing, its placeholder cannot be used by accident, and clearing forgets what was collected") {
  on_ranks(2, [&](int rank) {
    Mlp net;
    DistributedDataParallel ddp(net);
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    const int64_t before = dist::world().traffic().collectives;
    const auto collect = [&](int m) {
      const auto local = ddp.no_sync();
      loss_of(net, 0, 10 * rank + m).backward();
    };
    const auto reduced = [&] {  // with one more micro-batch, whose backward sums
      loss_of(net, 0, 10 * rank + 2).backward();
      return copy_gradients(net);
    };
    collect(0);
    collect(1);
    CHECK(dist::world().traffic().collectives == before);
    CHECK_ERROR(opt.step(), "storage is empty");
    CHECK_ERROR(optim::clip_grad_norm(net.parameters(), 1), "storage is empty");
    CHECK_ERROR(net.a.weight.grad().clone(), "storage is empty");
    const Tensors three = reduced();
    // Repeat the three micro-batches after two others that zero_grad() discards.
    opt.zero_grad();
    collect(7);
    collect(8);
    opt.zero_grad();
    collect(0);
    collect(1);
    CHECK(differing(three, reduced()) == "");
    // Clearing some gradients discards only those.
    opt.zero_grad();
    collect(0);
    net.b.zero_grad();
    collect(1);
    Tensors part = reduced();
    CHECK(equal(part["a.weight"], three.at("a.weight")));
    CHECK_FALSE(equal(part["b.weight"], three.at("b.weight")));
    opt.zero_grad();
    collect(1);
    CHECK(equal(part["b.weight"], reduced()["b.weight"]));
    opt.step();
  });
}

TEST_CASE("DDP: construction copies rank 0's parameters and buffers, or checks only") {
  for (const bool init_sync : {true, false}) {
    const auto values = on_ranks<double>(3, [&](int rank) {
      nn::BatchNorm bn({.channels = 2});
      const NoGrad no_grad;
      bn.weight.tensor().fill_(rank + 1);
      bn.running_mean.fill_(10 * (rank + 1));
      DistributedDataParallel ddp(bn, {.init_sync = init_sync});
      return bn.weight.tensor().select(0, 0).item() + bn.running_mean.select(0, 1).item();
    });
    CHECK(values == (init_sync ? std::vector<double>{11, 11, 11} : std::vector<double>{11, 22, 33}));
  }
}

TEST_CASE("DDP: buffers are rank 0's before every forward through the wrapper, not inside no_sync") {
  on_ranks(2, [&](int rank) {
    nn::BatchNorm bn({.channels = 2});
    DistributedDataParallel ddp(bn);
    const auto forward = [&] { sum(ddp(add_scalar(ones({4, 2}), rank * 100.))).backward(); };
    forward();
    CHECK(bn.running_mean.select(0, 0).item() == doctest::Approx(rank ? 10.1 : 0.1));
    forward();  // buffers continue from rank 0's value, 0.1
    CHECK(bn.running_mean.select(0, 0).item() == doctest::Approx(0.9 * 0.1 + 0.1 * (1 + rank * 100)));
    CHECK(bn.num_batches_tracked.item<int64_t>() == 2);
    const auto local = ddp.no_sync();
    const int64_t before = dist::world().traffic().collectives;
    forward();
    CHECK(dist::world().traffic().collectives == before);
  });
}

TEST_CASE("DDP: bytes moved match the formula; 16-bit and mixed models; parameters without elements") {
  on_ranks(4, [&](int rank) {
    Mlp net;
    DistributedDataParallel ddp(net);
    loss_of(net, 0, rank).backward();  // in the first step, ranks also agree on an order
    const dist::Traffic before = dist::world().traffic();
    loss_of(net, 0, rank).backward();
    const int64_t bytes = net.parameter_count() * 4;
    CHECK(dist::world().traffic().collectives - before.collectives == 1);
    // 2 (n - 1) / n of the bytes; shards differ by one element.
    CHECK(std::abs(dist::world().traffic().sent - before.sent - bytes * 2 * 3 / 4) <= 64);
  });
  on_ranks(2, [&](int rank) {
    struct Odd : nn::Layer<Odd> {
      Variable w{full({3}, 1.5), true}, h{full({3}, 1.5, {.dtype = bf16}), true}, none{zeros({0, 4}), true};
      Variable forward(const Variable& x) { return sum(w * x) + sum(h.to(f32) * x) + sum(none); }
      void fields(nn::Fields& f) override { f("w", w)("h", h)("none", none); }
    } odd;
    DistributedDataParallel ddp(odd);
    CHECK(ddp.buckets().size() == 2);
    for (int step = 0; step < 3; ++step) {
      odd.zero_grad();
      if (step > 0) {
        const auto local = ddp.no_sync();
        odd(full({3}, 4)).backward();
      }
      odd(full({3}, rank * 2)).backward();
      const float expected = step > 0 ? 5 : 1;
      CHECK(odd.w.grad().to_vector<float>() == std::vector<float>(3, expected));
      CHECK(odd.h.grad().dtype() == bf16);
      CHECK(odd.h.grad().to_vector<float>() == std::vector<float>(3, expected));
      CHECK(odd.none.grad().shape() == Shape{0, 4});
    }
  });
}

TEST_CASE("DDP: state carries the wrapper's prefix, and loading takes both forms") {
  on_ranks(1, [&](int) {
    Mlp net, other;
    DistributedDataParallel ddp(net), wrapped(other);
    CHECK(ddp.state()[0].first == "module.a.weight");
    wrapped.load_state(ddp.state());
    CHECK(differing(copy_parameters(net), copy_parameters(other)) == "");
    wrapped.load_state(net.state());
    CHECK(without_wrapper(ddp.state())[1].first == "a.bias");
    CHECK(without_wrapper(net.state())[1].first == "a.bias");
    CHECK(without_wrapper({}).empty());
  });
}

TEST_CASE("GradientSum: sums in tree order, skips parameters that never had a gradient, forgets on demand") {
  Branches net;
  GradientSum sum_of(net.parameters());
  CHECK_ERROR(sum_of.finish(), "expected add() after a backward");
  for (int m = 0; m < 3; ++m) {
    sum(net(ones({2, 3}))).backward();
    sum_of.add();
    CHECK_FALSE(net.left.bias.grad().defined());
  }
  CHECK(sum_of.count() == 3);
  sum_of.finish();
  CHECK(net.left.bias.grad().to_vector<float>() == std::vector<float>{6, 6});
  CHECK_FALSE(net.never.bias.grad().defined());
  net.zero_grad();
  sum(net(ones({2, 3}))).backward();
  sum_of.add();
  sum_of.discard();
  sum(net(ones({2, 3}))).backward();
  sum_of.add();
  sum_of.finish();
  CHECK(net.left.bias.grad().to_vector<float>() == std::vector<float>{2, 2});
  net.requires_grad_(false);
  CHECK_ERROR(GradientSum(net.parameters()), "expected parameters that require grad");
}

TEST_CASE("agreed(): the mean over the ranks of a wrapper, while it lives") {
  on_ranks(3, [](int rank) {
    Branches net;
    const std::vector<Variable> never{net.never.weight}, parameters = net.parameters();
    {
      DistributedDataParallel ddp(net);
      CHECK(agreed(parameters, rank, "a number") == 1);
      CHECK(std::isnan(agreed(never, rank == 1 ? NAN : 0, "a number")));
      CHECK(mean_over_ranks(net.left.weight));
    }
    CHECK(agreed(parameters, rank, "a number") == rank);
  });
}
