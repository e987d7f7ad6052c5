// Communication hooks: 16-bit sums, PowerSGD, post-local SGD.
#include <doctest/doctest.h>

#include <cmath>

#include "extensions/compression/comm_hooks.h"
#include "optim/optim.h"
#include "tests/environment.h"
#include "tests/parallel/util.h"

using namespace lockstep;
using namespace lockstep::parallel;
using namespace testing;

namespace {

Variable regression(nn::Module& net, int step, int rank, int64_t in = 6) {
  manual_seed(99);
  set_random_step(uint64_t(step), uint64_t(rank));
  const Tensor x = randn({8, in});
  return mse_loss(net.call(x), Variable(matmul(x, full({in, 3}, 0.5))));
}

/// Bytes that this rank sends in one backward.
int64_t sent_by(nn::Module& net, int step, int rank) {
  const int64_t before = dist::world().traffic().sent;
  regression(net, step, rank).backward();
  return dist::world().traffic().sent - before;
}

/// Compares the gradients of one backward with and without a hook.
void compare(int ranks, const DdpOptions& options, double tolerance, double bytes_ratio) {
  const EnvironmentVariable direct("LOCKSTEP_ALGORITHM", "direct");  // for all sizes, since bytes are compared
  on_ranks(ranks, [&](int rank) {
    manual_seed(1);
    Mlp plain, hooked;
    hooked.load_state(plain.state());
    DistributedDataParallel exact(plain, {.bucket_mib = options.bucket_mib}), ddp(hooked, options);
    for (int step = 0; step < 2; ++step) {
      plain.zero_grad();
      hooked.zero_grad();
      const double full = double(sent_by(plain, step, rank)), less = double(sent_by(hooked, step, rank));
      if (step == 1 && ranks > 1) CHECK(less / full == doctest::Approx(bytes_ratio).epsilon(0.05));
      CHECK(distance(copy_gradients(plain), copy_gradients(hooked)) <= tolerance);
      CHECK(hooked.a.weight.grad().dtype() == f32);
    }
  });
}

}  // namespace

TEST_CASE("hooks: fp16 and bf16 send half the bytes and round once") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const double mib : {1e-6, 25.}) {
      CAPTURE(ranks);
      compare(ranks, {.bucket_mib = mib, .hook = fp16_compress_hook()}, 2e-3, 0.5);
      compare(ranks, {.bucket_mib = mib, .overlap = false, .hook = bf16_compress_hook()}, 2e-2, 0.5);
    }
  }
}

TEST_CASE("hooks: a hook must leave its result in the bucket, and a program may define its own") {
  on_ranks(2, [&](int rank) {
    nn::Linear layer({.in = 2, .out = 1});
    int calls = 0;
    DistributedDataParallel ddp(layer, {.hook = [&](GradBucket& bucket, dist::ProcessGroup&) -> std::function<void()> {
                                  ++calls;
                                  CHECK(bucket.names == std::vector<std::string>{"bias", "weight"});
                                  CHECK(bucket.parameters[1].shape() == Shape{1, 2});
                                  bucket.gradients.fill_(7);
                                  return {};
                                }});
    sum(ddp(ones({1, 2}))).backward();
    CHECK(calls == 1);
    CHECK(layer.weight.grad().to_vector<float>() == std::vector<float>{7, 7});
    nn::Linear other({.in = 2, .out = 1});
    DistributedDataParallel wrong(other, {.hook = [](GradBucket& bucket, dist::ProcessGroup&) -> std::function<void()> {
                                    return [&bucket] { bucket.gradients = zeros({3}); };
                                  }});
    CHECK_ERROR(sum(wrong(full({1, 2}, rank))).backward(), "leave its result in bucket.gradients, of 3 elements");
  });
}

TEST_CASE("PowerSGD: before its start it is exact; at full rank it is exact up to rounding") {
  on_ranks(2, [&](int rank) {
    manual_seed(1);
    Mlp plain, early, full;
    early.load_state(plain.state());
    full.load_state(plain.state());
    const PowerSgd not_yet({.start_step = 100}), all({.rank = 64, .start_step = 0, .min_compression = 1e-9});
    DistributedDataParallel a(plain), b(early, {.hook = not_yet.hook()}), c(full, {.hook = all.hook()});
    for (int step = 0; step < 3; ++step) {
      for (nn::Module* net : {&plain, &early, &full}) net->zero_grad();
      CHECK(sent_by(plain, step, rank) == sent_by(early, step, rank));
      const Variable loss = regression(full, step, rank);
      const RandomState before = random_state();
      loss.backward();
      CHECK(random_state() == before);  // the program's random numbers are left alone
      CHECK(distance(copy_gradients(plain), copy_gradients(early)) == 0);
      CHECK(distance(copy_gradients(plain), copy_gradients(full)) < 1e-5);
    }
    // The mean error is 0, but a single rank's is not: its gradient has directions that cancel in the mean.
    Tensor owed = all.error("a.weight").clone();
    dist::world().all_reduce(owed, {.op = dist::ReduceOp::mean});
    CHECK(max(abs(owed)).item() < 1e-5);
    CHECK_FALSE(all.error("a.bias").defined());
  });
}

TEST_CASE("PowerSGD: sent gradients plus the error feedback equal the true gradients, and fewer numbers are sent") {
  const EnvironmentVariable direct("LOCKSTEP_ALGORITHM", "direct");  // for all sizes, since bytes are compared
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    on_ranks(ranks, [&](int rank) {
      manual_seed(1);
      Mlp plain, net;
      net.load_state(plain.state());
      const PowerSgd power({.rank = 2, .start_step = 1});
      DistributedDataParallel a(plain), b(net, {.bucket_mib = 0.004, .hook = power.hook()});
      Tensor sent = zeros({24, 40}), truth = zeros({24, 40});
      int64_t exact = 0, less = 0;  // bytes sent
      for (int step = 0; step < 6; ++step) {
        plain.zero_grad();
        net.zero_grad();
        exact += sent_by(plain, step, rank);
        less += sent_by(net, step, rank);
        add_(sent, net.b.weight.grad());
        add_(truth, plain.b.weight.grad());
      }
      Tensor owed = power.error("b.weight").clone();
      CHECK(max(abs(owed)).item() > 1e-4);
      dist::world().all_reduce(owed, {.op = dist::ReduceOp::mean});
      CHECK(max(abs(sub(add(sent, owed), truth))).item() < 1e-5);
      CHECK((ranks == 1 || less < exact / 2));
    });
  }
}

TEST_CASE("PowerSGD: training converges; without error feedback it keeps no state; gradients of zeros do not stop it") {
  const auto train = [](const PowerSgdOptions& options, bool compressed) {
    return on_ranks<double>(2, [&](int rank) {
      manual_seed(1);
      nn::Linear net({.in = 32, .out = 3});
      const PowerSgd power(options);
      DistributedDataParallel ddp(net, {.hook = compressed ? power.hook() : CommHook()});
      optim::SGD opt(net.parameters(), {.lr = 0.05, .momentum = 0.5});
      double last = 0;
      for (int step = 0; step < 120; ++step) {
        opt.zero_grad();
        Variable loss = regression(net, step, rank, 32);
        if (step == 5) loss = loss * 0.;
        loss.backward();
        opt.step();
        last = loss.item();
      }
      if (compressed) CHECK(power.error("weight").defined() == options.error_feedback);
      return last;
    })[0];
  };
  const double exact = train({}, false);
  CHECK(exact < 1e-3);
  for (const bool warm : {true, false})
    CHECK(train({.rank = 1, .start_step = 2, .min_compression = 1.5, .warm_start = warm}, true) < 1e-2);
  CHECK(std::isfinite(train({.rank = 1, .min_compression = 1.5, .error_feedback = false}, true)));
  CHECK_ERROR(PowerSgd({.rank = 0}), "expected rank >= 1, got 0");
  CHECK_ERROR(PowerSgd({.start_step = -1}), "expected start_step >= 0, got -1");
  CHECK_ERROR(PowerSgd({.min_compression = 0}), "expected a finite min_compression > 0, got 0");
}

TEST_CASE("post-local SGD: exact at first, then local, parameters averaged every period") {
  on_ranks(2, [&](int rank) {
    manual_seed(1);
    Mlp net;
    PostLocalSgd local({.start_step = 2, .period = 3});
    DistributedDataParallel ddp(net, {.hook = local.hook()});
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    std::string averaged;
    for (int step = 0; step < 8; ++step) {
      opt.zero_grad();
      regression(net, step, rank).backward();
      opt.step();
      averaged += local.step(net, dist::world()) ? 'x' : '.';
      Tensor low = net.a.weight.tensor().clone(), high = low.clone();
      dist::world().all_reduce(low, {.op = dist::ReduceOp::min});
      dist::world().all_reduce(high, {.op = dist::ReduceOp::max});
      CHECK(equal(low, high) == (step < 2 || averaged.back() == 'x'));
    }
    CHECK(averaged == "....x..x");
  });
  CHECK_ERROR(PostLocalSgd({.period = 0}), "expected period >= 1, got 0");
}
