// DataParallel on virtual CPU devices: the results of one device, the bytes that its table reports, and error messages.
#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <iterator>

#include "autograd/autocast.h"
#include "extensions/data_parallel/data_parallel.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "optim/optimizer.h"
#include "tensor/random.h"
#include "tests/apart.h"
#include "tests/devices.h"
#include "tests/messages.h"

using namespace lockstep;
using parallel::DataParallel;
using parallel::Reduce;

namespace {

Device device(int i) { return {Device::Type::cpu, int16_t(i)}; }
std::vector<Device> first(int n) {
  const std::vector<Device> all = all_devices();
  return {all.begin(), all.begin() + n};
}

struct SmallNet : nn::Layer<SmallNet> {
  nn::Linear hidden{{.in = 5, .out = 7}}, head{{.in = 7, .out = 3}};
  Variable forward(const Variable& x) { return head(relu(hidden(x))); }
  void fields(nn::Fields& f) override { f("hidden", hidden)("head", head); }
};

/// A module made of a function, with one parameter of 3 elements and one buffer.
template <class Fn> struct Lambda : nn::Layer<Lambda<Fn>> {
  Fn fn;
  Variable w{ones({3}), true};
  Tensor calls = zeros({});
  explicit Lambda(Fn fn) : fn(fn) {}
  template <class... Args>
  requires std::invocable<Fn&, Lambda&, Args...>
  auto forward(Args&&... args) { return fn(*this, std::forward<Args>(args)...); }
  void fields(nn::Fields& f) override { f("w", w)("calls", calls); }
};

/// Calls check(dp, module), where dp is a DataParallel of a module whose forward is fn(module, inputs...).
template <class Fn, class Check> void with(Fn fn, parallel::DataParallelOptions options, Check check) {
  Lambda<Fn> module(fn);
  DataParallel<Lambda<Fn>> dp(
      module, [fn] { return Lambda<Fn>(fn); }, options);
  check(dp, module);
}
/// Checks that a DataParallel of a module whose forward is fn rejects the input x.
template <class Fn> void refuses(const Tensor& x, const char* text, Fn fn, parallel::DataParallelOptions options = {}) {
  with(fn, options, [&](auto& dp, auto&) { CHECK_ERROR(dp(x), text); });
}
Variable same(nn::Module&, const Variable& piece) { return piece; }

std::vector<Tensor> gradients_of(nn::Module& module) {
  std::vector<Tensor> all;
  for (const Variable& p : module.parameters()) all.push_back(p.grad().defined() ? p.grad().clone() : Tensor());
  return all;
}

}  // namespace

TEST_CASE("a batch is split as by torch.chunk") {
  const std::tuple<int64_t, int, std::vector<int64_t>> rows[] = {
      {30, 2, {15, 15}}, {10, 3, {4, 4, 2}}, {5, 4, {2, 2, 1}}, {9, 4, {3, 3, 3}},
      {3, 4, {1, 1, 1}}, {1, 2, {1}},        {7, 1, {7}},       {97, 8, {13, 13, 13, 13, 13, 13, 13, 6}}};
  const Devices eight(8);
  for (const auto& [n, k, expected] : rows) {
    INFO(n, " in ", k);
    CHECK(parallel::chunk_sizes(n, k) == expected);
    for (const int64_t dim : {0, 1, -1}) {
      const Variable x(dim == 0 ? rand({n, 2}) : rand({2, n}), true);
      std::vector<int64_t> sizes(expected.size(), 0);
      Variable back;
      with(
          [&](auto&, const Variable& piece) {
            sizes.at(size_t(piece.device().index)) = piece.size(dim);
            return piece;
          },
          {.devices = first(k), .output = device(1), .dim = dim}, [&](auto& dp, auto&) { back = dp(x); });
      CHECK(sizes == expected);
      CHECK(back.device() == device(1));
      CHECK(equal(back.tensor().to(cpu), x.tensor()));
      sum(back * back).backward();
      CHECK(equal(x.grad(), x.tensor() * 2.0));
    }
  }
  CHECK_ERROR(parallel::chunk_sizes(0, 2), "[chunk_sizes] expected at least one sample");
  refuses(zeros({0, 3}), "expected at least one sample, got an empty batch: shape (0, 3), dim 0", same);
  refuses(ones({}), "got a scalar tensor", same);
  refuses(ones({2}), "expected inputs with a batch in dim 1, got shape (2)", same, {.dim = 1});
}

TEST_CASE("outputs, loss and gradients equal those on one device") {
  const Devices four(4);
  for (const Reduce reduce : {Reduce::root, Reduce::cpu, Reduce::ring}) {
    for (int k = 1; k <= 4; ++k) {
      for (const int64_t batch : {1, 2, 5, 30, 31}) {
        INFO("reduce ", int(reduce), ", devices ", k, ", batch ", batch);
        manual_seed(3);
        SmallNet net;
        DataParallel model(net, {.devices = first(k), .reduce = reduce});
        Variable x(randn({batch, 5}), true);
        const Tensor y = randn({batch, 3});
        const auto step = [&](auto& m) {
          net.zero_grad(), x.clear_grad();
          Variable out = m(x);
          const Variable loss = mse_loss(out, y);
          loss.backward();
          std::vector<Tensor> results = gradients_of(net);
          results.insert(results.end(), {out.tensor(), loss.tensor(), x.grad().clone()});
          return results;
        };
        const std::vector<Tensor> one = step(net), many = step(model), again = step(model);
        CHECK(testing::max_difference(one, many) < 1e-6);
        for (size_t i = 0; i < one.size(); ++i) {
          CHECK(many[i].device() == cpu);
          CHECK(equal(many[i], again[i]));  // the number of threads does not change the order of sums
        }
      }
    }
  }
}

TEST_CASE("training goes on as on one device, over steps, accumulation and two optimizers") {
  const Devices three(3);
  std::vector<std::vector<Tensor>> ends;
  for (const int k : {1, 3}) {
    manual_seed(11);
    SmallNet net;
    DataParallel model(net, {.devices = first(k), .reduce = Reduce::ring});
    optim::AdamW opt(model.parameters(), {.lr = 0.01});
    for (int step = 0; step < 20; ++step) {
      opt.zero_grad();
      for (int micro = 0; micro < 2; ++micro) {
        const Tensor x = randn({10, 5}), y = randn({10, 3});
        (model(x) * 0.5 + net(x) * 0.5 - y).backward(ones({10, 3}));  // also uses the module itself, on one device
      }
      optim::clip_grad_norm(model.parameters(), 1.0);
      opt.step();
    }
    ends.emplace_back();
    for (const Variable& p : net.parameters()) ends.back().push_back(p.tensor());
  }
  CHECK(testing::max_difference(ends[0], ends[1]) < 1e-5);
}

TEST_CASE("inputs: containers are split, other objects shared, and inputs shorter than the batch rejected") {
  const Devices two(2);
  using Map = std::map<std::string, Variable>;
  const Tensor x = arange(12).to(f32).view({4, 3}), labels = arange(4);
  with(
      [](auto& m, const std::vector<Variable>& list, const std::tuple<Tensor, int, bool>& t,
         const std::pair<Variable, std::optional<Variable>>& p, const Map& map, const Tensor& table,
         const Tensor& nothing, const std::string& word, std::vector<int>& observed) {
        CHECK(!nothing.defined());
        CHECK(word == "shared");
        CHECK((std::get<1>(t) == 7 && std::get<2>(t)));
        CHECK(table.shape() == Shape{5, 3});
        CHECK(list[0].device() == table.device());
        observed[size_t(list[0].device().index)] = int(list[0].size(0));
        const Variable base =
            list[0] * m.w + list[1] + std::get<0>(t).unsqueeze(1).to(f32) + p.first + *p.second + map.at("a");
        return std::make_pair(base + sum(table), Map{{"half", base * 0.5}});
      },
      {},
      [&](auto& dp, auto& module) {
        std::vector<int> observed(2);
        const auto [y, map] = dp(std::vector<Variable>{x, x}, std::tuple<Tensor, int, bool>{labels, 7, true},
                                 std::pair<Variable, std::optional<Variable>>{x, x}, Map{{"a", x}},
                                 parallel::shared(ones({5, 3})), Tensor(), std::string("shared"), observed);
        CHECK(observed == std::vector<int>{2, 2});
        const Tensor expected = x * 5.0 + labels.unsqueeze(1).to(f32);
        CHECK(equal(y.tensor(), expected + 15.0));
        CHECK(equal(map.at("half").tensor(), expected * 0.5));
        sum(y).backward();
        CHECK(equal(module.w.grad(), sum(x, {0})));
      });
  with([](auto& m, const Variable& a, const Variable& b) { return a * m.w + b; }, {},
       [&](auto& dp, auto&) {
         CHECK_ERROR_IS(
             dp(x, ones({5, 3})),
             "[DataParallel] expected all inputs to have the same size in dim 0, got 4 and 5 (pass an input without "
             "a batch whole to every replica with shared(x))");
         CHECK_ERROR(dp(zeros({0, 3}), zeros({0, 3})), "got an empty batch");
         CHECK_ERROR(dp(parallel::shared(x), parallel::shared(x)), "expected at least one input with a batch");
         Variable table(ones({3}), true);
         sum(dp(x, parallel::shared(table))).backward();
         CHECK(equal(table.grad(), full({3}, 4)));
       });
  with([](auto& m, const Variable& a) { return (a.t() * m.w).t(); }, {.dim = 1},
       [&](auto& dp, auto&) { CHECK(equal(dp(x.t()).tensor(), x.t())); });
}

TEST_CASE("outputs: containers, scalars, other devices") {
  const Devices three(3);
  const Tensor x = arange(7).to(f32);
  with(
      [](auto& m, const Variable& a) {
        return std::make_tuple(mean(a * m.w[0]),
                               std::vector<Tensor>{a.tensor(), lt(a.tensor(), full({}, 3, {f32, a.device()}))},
                               std::optional<Variable>());
      },
      {},
      [&](auto& dp, auto& module) {
        const auto [means, list, none] = dp(x);
        const Variable losses = means;
        CHECK(equal(losses.tensor(), Tensor::from({1.f, 4.f, 6.f})));  // replicas have 3, 3 and 1 samples
        const Variable loss = parallel::weighted_mean(losses, parallel::chunk_sizes(7, 3));
        CHECK(loss.item() == doctest::Approx(3));  // weighted by samples; the plain mean of the means would be 3.67
        loss.backward();
        CHECK(module.w.grad()[0].item() == doctest::Approx(3));
        CHECK(equal(list[0], x));
        CHECK(list[1].dtype() == boolean);
        CHECK(!none);
        CHECK_ERROR(parallel::weighted_mean(losses, {1, 2}),
                    "[weighted_mean] expected a vector of 2 values, one per piece, got shape (3)");
        CHECK_ERROR(parallel::weighted_mean(losses, {1, 2, 0}), "at least one sample, got 0");
      });
  with([](auto& m, const Variable& a) { return a * m.w[0]; }, {.devices = {device(1), device(2)}, .output = device(0)},
       [&](auto& dp, auto& module) {
         CHECK_ERROR_IS(
             dp(x),
             "[DataParallel] expected the module on cpu:1, the first of the devices, got parameter w (3) on cpu:0 "
             "(move it with module.to(device))");
         dp.to(device(1));
         const Variable y = dp(x);
         CHECK(y.device() == cpu);
         sum(y).backward();
         CHECK(module.w.grad().device() == device(1));
         CHECK(module.w.grad()[0].item() == 21);
       });
  using Map = std::map<std::string, Variable>;
  refuses(x, "[DataParallel] expected maps of the same keys from every replica", [](auto&, const Variable& a) {
    return Map{{a.device().index == 0 ? "left" : "right", a}};
  });
  refuses(x, "lists of one length",
          [](auto&, const Variable& a) { return std::vector<Variable>(size_t(a.device().index + 1), a); });
  refuses(x, "tensors with the same number of dimensions",
          [](auto&, const Variable& a) { return a.device().index == 0 ? a : sum(a); });
}

TEST_CASE("modes, random numbers, hooks, flags and buffers reach the replicas") {
  const Devices three(3);
  const Tensor x = ones({6, 3});
  manual_seed(9);
  const auto probe = [](auto& m, const Variable& a) {
    add_scalar_(m.calls, 1);
    const double flags = (NoGrad::grad_enabled() ? 1 : 0) + (Autocast::enabled() ? 2 : 0) + (m.is_training() ? 4 : 0) +
                         (AnomalyMode::enabled() ? 8 : 0);
    const Variable dropped = dropout(a * m.w, 0.5);  // draws first, so that the next draw has call number 1
    return dropped * 0.0 + (rand({2, 1}).to(a.device()) + flags);
  };
  with(probe, {}, [&](auto& dp, auto& module) {
    set_random_step(4, 5);
    const Tensor y = dp(x).tensor();
    CHECK(random_state() == RandomState{.seed = 9, .step = 4, .micro_batch = 5, .call = 2});
    const std::vector<float> flags = floor(y).to_vector<float>();
    CHECK(flags == std::vector<float>(flags.size(), 5));
    for (uint64_t i = 0; i < 3; ++i) {  // replica i draws as micro-batch 5 * 3 + i
      set_random_step(4, 15 + i);
      next_random_key();
      const Tensor expected = rand({2, 1}) + 5.0;
      CHECK(equal(y.narrow(0, int64_t(2 * i), 2), expected.expand({2, 3}).contiguous()));
    }
    CHECK(module.calls.item() == 1);
    {
      const NoGrad no_grad;
      const Autocast autocast(bf16);
      const AnomalyMode anomaly;
      dp.eval();
      const Variable out = dp(x);
      CHECK(!out.requires_grad());
      CHECK(floor(out.tensor()).to_vector<float>() == std::vector<float>(18, 10));
    }
    // each forward starts from the module's buffer; only the first replica's change is kept
    CHECK(module.calls.item() == 2);
    dp.train();
    std::atomic<int> before{0}, after{0};
    const int id = module.before_forward([&](nn::Module&, const std::vector<Variable>&) { ++before; });
    const int other = module.after_forward([&](nn::Module& m, const std::vector<Variable>&, const Variable&) {
      after += m.named_buffers()[0].tensor.item() == 3;
    });
    dp(x);
    module.remove_hook(id), module.remove_hook(other);
    CHECK(before == 3);
    CHECK(after == 3);
    dp(x);
    CHECK(before == 3);
  });
}

TEST_CASE("batch norm: each replica normalises its own piece, the module keeps the first one's statistics") {
  const Devices two(2);
  manual_seed(1);
  nn::BatchNorm1d norm({.channels = 4}), single({.channels = 4});
  DataParallel model(norm, [] { return nn::BatchNorm1d({.channels = 4}); });
  const Tensor x = randn({9, 4});
  const Variable y = model(x);
  CHECK(equal(y.tensor().narrow(0, 5, 4), single(x.narrow(0, 5, 4)).tensor()));
  single.load_state(
      {{"running_mean", zeros({4})}, {"running_var", ones({4})}, {"num_batches_tracked", zeros({}, {.dtype = i64})}},
      false);
  CHECK(equal(y.tensor().narrow(0, 0, 5), single(x.narrow(0, 0, 5)).tensor()));
  CHECK(equal(norm.running_mean, single.running_mean));
  CHECK(norm.num_batches_tracked.item<int64_t>() == 1);
  CHECK(model.state()[0].first == "module.weight");
}

TEST_CASE("a GPT with tied weights, dropout and checkpoints is gradient accumulation over the pieces") {
  const Devices two(2);
  const nn::GPT::Options o{.vocab = 17, .context = 8, .layers = 2, .width = 16, .heads = 2, .dropout = 0.1};
  nn::GPT::Options with_checkpoints = o;
  with_checkpoints.checkpoint_blocks = true;
  manual_seed(2);
  nn::GPT gpt(o);
  const nn::State start = gpt.state();
  const Tensor tokens = randint(0, 17, {4, 8}), targets = randint(0, 17, {4, 8});
  std::vector<std::vector<Tensor>> results;
  for (int way = 0; way < 4; ++way) {
    nn::GPT model(way < 2 ? o : with_checkpoints);
    model.load_state(start);
    set_random_step(1);
    if (way == 0) {
      for (uint64_t i = 0; i < 2; ++i) {
        set_random_step(1, i);
        mul_scalar(model.loss(tokens.narrow(0, int64_t(2 * i), 2), targets.narrow(0, int64_t(2 * i), 2)), 0.5)
            .backward();
      }
    } else {
      DataParallel dp(model, [&] { return nn::GPT(model.o); }, {.reduce = way == 3 ? Reduce::cpu : Reduce::root});
      const Variable loss = cross_entropy(dp(tokens).view({-1, 17}), targets.reshape({-1}));
      if (way == 3) {  // another forward between forward and backward changes nothing
        const NoGrad no_grad;
        dp(tokens);
      }
      loss.backward();
    }
    results.push_back(gradients_of(model));
  }
  for (size_t way = 1; way < 4; ++way) CHECK(testing::max_difference(results[0], results[way]) < 1e-6);
  CHECK(testing::max_difference(results[1], results[2]) < 1e-7);
}

TEST_CASE("frozen, unused and shared parameters; low precision; gradients without .grad") {
  const Devices two(2);
  const Tensor x = randn({4, 5});
  SmallNet net;
  net.hidden.bias.requires_grad_(false);
  DataParallel model(net);
  sum(model(x)).backward();
  CHECK(!net.hidden.bias.grad().defined());
  CHECK(net.hidden.weight.grad().defined());
  const std::vector<Variable> direct = grad(sum(model(x)), {net.head.weight}),
                              plain = grad(sum(net(x)), {net.head.weight});
  CHECK(testing::max_difference(direct[0].tensor(), plain[0].tensor()) < 1e-6);
  with([](auto& m, const Variable& a) { return a.device().index == 0 ? a * 2.0 : a * m.w; }, {},
       [&](auto& dp, auto& module) {  // only the second replica uses w
         sum(dp(ones({4, 3}))).backward();
         CHECK(equal(module.w.grad(), full({3}, 2)));
       });
  with([](auto&, const Variable& a) { return a * 2.0; }, {.reduce = Reduce::ring},
       [&](auto& dp, auto& module) {  // no replica uses w
         Variable a(ones({4, 3}), true);
         sum(dp(a)).backward();
         CHECK(!module.w.grad().defined());
       });
  net.to(bf16);
  net.zero_grad();
  sum(model(x.to(bf16))).backward();
  CHECK(net.head.weight.grad().dtype() == bf16);
  CHECK_ERROR_BEGINS(model(ones({4, 6}, {.dtype = bf16})), "[DataParallel] replica 0 on cpu:0: [linear]");
}

TEST_CASE("an exception names its replica, after all have come to an end") {
  const Devices four(4);
  std::atomic<int> ended{0};
  const auto fails = [&](auto& m, const Variable& a) {
    const int i = a.device().index;
    ++ended;
    if (i == 2) fail("out of luck");
    if (i == 3) throw std::out_of_range("later");
    return a * m.w;
  };
  with(fails, {}, [&](auto& dp, auto& module) {
    const RandomState before = random_state();
    CHECK_ERROR_IS(dp(ones({8, 3})), "[DataParallel] replica 2 on cpu:2: out of luck");
    CHECK(ended == 4);
    CHECK(random_state() == before);
    const Variable y = dp(ones({2, 3}));  // two replicas, neither of which fails
    sum(y).backward();
    CHECK(equal(module.w.grad(), full({3}, 2)));
  });
  const auto other = [](auto&, const Variable& a) -> Variable {
    if (a.device().index == 1) throw std::out_of_range("beyond");
    return a;
  };
  with(other, {}, [](auto& dp, auto&) {
    try {
      dp(ones({4, 3}));
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(std::string(error.what()) == "[DataParallel] replica 1 on cpu:1: beyond");
      CHECK_THROWS_AS(std::rethrow_if_nested(error), std::out_of_range);
    }
  });
}

TEST_CASE("wrong options and factories") {
  const Devices two(2);
  SmallNet net;
  using Options = parallel::DataParallelOptions;
  CHECK_ERROR(DataParallel(net, Options{.devices = {cpu, device(2)}}),
              "[DataParallel] expected one of the devices cpu:0, cpu:1, got cpu:2");
  CHECK_ERROR_IS(DataParallel(net, Options{.devices = {cpu, cpu}}),
                 "[DataParallel] expected every device once, got cpu:0 twice; leave one out");
  CHECK_ERROR(DataParallel(net, Options{.output = device(5)}), "got cpu:5");
  nn::Linear small({.in = 2, .out = 3});
  CHECK_ERROR_IS(
      DataParallel(small, [] { return nn::Linear({.in = 2, .out = 4}); }),
      "[DataParallel] expected the factory to make a module of the same structure: the module has parameter weight "
      "(3, 2), "
      "the replica for cpu:1 has parameter weight (4, 2); use the module's options in the factory");
  CHECK_ERROR(DataParallel(small, [] { return nn::Linear({.in = 2, .out = 3, .bias = false}); }),
              "the module has parameter bias (3), the replica for cpu:1 has nothing more");
  DataParallel model(small, [] { return nn::Linear({.in = 2, .out = 3}); });
  small.bias = Variable();
  CHECK_ERROR(model(ones({4, 2})), "the module has nothing more, the replica for cpu:1 has parameter bias (3)");
  const RandomState before = random_state();
  DataParallel quiet(net);
  CHECK(random_state() == before);
}

TEST_CASE("bytes: each way of reducing has its bottleneck") {
  for (const int k : {2, 3, 4}) {
    const Devices devices(k);
    SmallNet net;  // 35 + 7 + 21 + 3 floats: chunks are uneven
    const int64_t n = k, bytes = 4 * net.parameter_count();
    for (const Reduce reduce : {Reduce::root, Reduce::cpu, Reduce::ring}) {
      INFO("reduce ", int(reduce), ", devices ", k);
      DataParallel model(net, {.reduce = reduce});
      Variable x(randn({4 * n, 5}), true);
      sum(model(x)).backward();
      const std::vector<parallel::DeviceTraffic> rows = model.bytes_moved();
      REQUIRE(int64_t(rows.size()) == n + 1);
      const auto &root = rows[0], &last = rows[size_t(n - 1)], &host = rows.back();
      CHECK(host.device == "host");
      CHECK(last.device == str("cpu:", k - 1));
      int64_t sent = 0, received = 0;
      for (const auto& row : rows) sent += row.sent(), received += row.received();
      CHECK(sent == received);
      CHECK(root.samples == 4);
      CHECK(last.seconds > 0);
      CHECK(root.batch.sent == (n - 1) * 4 * (5 + 3) * 4);  // inputs, and gradients of outputs
      CHECK(last.batch.sent == root.batch.received / (n - 1));
      CHECK(last.parameters.received == bytes);
      const bool by_host = reduce == Reduce::cpu;
      CHECK(root.parameters.sent == (reduce == Reduce::root ? n - 1 : 1) * bytes);
      CHECK(host.sent() == (by_host ? n : 0) * bytes);
      CHECK(host.received() == (by_host ? n + 1 : 0) * bytes);
      if (by_host) CHECK(host.gradients.received == n * bytes);
      if (reduce != Reduce::ring) CHECK(root.gradients.received == (by_host ? 1 : n - 1) * bytes);
      if (reduce == Reduce::root) {
        CHECK(root.gradients.sent + last.gradients.received == 0);
        CHECK(last.gradients.sent == bytes);
      } else if (reduce == Reduce::ring) {
        CHECK(last.parameters.sent == 0);
        int64_t in_ring = 0;
        for (const auto& row : rows) in_ring += row.gradients.received;
        int64_t own = 0;  // chunk 0 of every parameter ends on the first device, which receives the other chunks
        for (const Variable& p : net.parameters()) own += 4 * ((p.numel() + n - 1) / n);
        CHECK(in_ring == (n - 1) * bytes + (bytes - own));
        CHECK(double(root.gradients.received) ==
              doctest::Approx(2.0 * double(n - 1) / double(n) * double(bytes)).epsilon(0.1));
      }
      CHECK(contains(to_string(rows), by_host ? "busiest: host" : "busiest: cpu:0"));
    }
  }
}

TEST_CASE("no thread or memory is left") {
  const Devices four(4);
  SmallNet net;
  const auto train = [&](int steps) {
    DataParallel model(net);
    for (int i = 0; i < steps; ++i) sum(model(randn({8, 5}))).backward();
    net.zero_grad();
  };
  train(1);
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
  };
  const auto count = threads();
  const int64_t memory = memory_report().total.current;
  train(20);
  CHECK(threads() <= count);
  CHECK(memory_report().total.current <= memory);
}
