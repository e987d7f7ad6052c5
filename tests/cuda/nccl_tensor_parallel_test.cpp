// Tensor parallelism on devices: products in chunks are bit-identical to whole ones under every stream policy and with
// all features of training combined, and their collectives overlap with the products.
#include <doctest/doctest.h>

#include <atomic>

#include "parallel/tensor_parallel/linear.h"
#include "parallel/tensor_parallel/overlap.h"
#include "tensor/ops.h"
#include "tests/cuda/graph_training.h"
#include "tests/cuda/nccl_util.h"
#include "tests/cudasim/block.h"
#include "tests/cudasim/fake.h"
#include "tests/ranks.h"

using namespace lockstep;
using namespace testing;
using dist::world;
namespace tp = lockstep::tensor_parallel;

namespace {

/// While it lives, cutting a product into parts changes no bits, unless a part races with another. On a GPU it may.
struct ExactSums {
  ExactSums() { fake::order_sums(false); }
  ~ExactSums() { fake::order_sums(true); }
};

/// Sets the order of streams, and of threads and blocks, for one test.
struct Orders : StreamPolicy {
  Orders(fake::Policy policy, simt::Order order, uint64_t seed) : StreamPolicy(policy, seed) {
    simt::options() = {order, seed};
  }
  ~Orders() { simt::options() = {}; }
};

Tensor noise_at(uint64_t seed, const Shape& shape, Device device) {
  manual_seed(seed);
  return randn(shape, {.device = cpu}).to(device);
}

/// Outputs and gradients (on the host) of two layers, one column-parallel and one row-parallel.
std::vector<Tensor> two_layers(Device device, bool sequence, int64_t chunks, const Shape& rows) {
  dist::ProcessGroup& g = world();
  Shape shape = rows;
  shape.push_back(16);
  if (sequence) shape[shape.rank() - 2] /= g.size();
  const auto own = [&](uint64_t seed, const Shape& s) {
    return Variable(noise_at(seed + uint64_t(g.rank()), s, device), true);
  };
  const Variable x = sequence ? own(10, shape) : Variable(noise_at(10, shape, device), true), up = own(20, {24, 16}),
                 bias = own(30, {24}), down = own(40, {16, 24});
  const bool entire = chunks == 1;
  const Variable h = tp::column_linear(x, up, bias, Activation::gelu_tanh,
                                       {.sequence = sequence, .overlap = !entire, .chunks = chunks}, g),
                 y = tp::row_linear(h, down, {}, Activation::none,
                                    {.sequence = sequence, .overlap = !entire, .chunks = chunks}, g);
  y.backward(noise_at(50, y.shape(), device));
  std::vector<Tensor> all;
  for (const Tensor& t : {y.tensor(), x.grad(), up.grad(), bias.grad(), down.grad()}) all.push_back(t.to(cpu));
  return all;
}

/// The losses of all ranks in two steps of a GPT.
std::vector<std::vector<double>> losses_in_chunks(Plan plan, int64_t chunks) {
  plan.accumulation = plan.steps = 2, plan.autocast = bf16, plan.lengths = {16}, plan.chunks = chunks;
  plan.model = {.vocab = 40, .context = 16, .layers = 2, .width = 32, .heads = 2, .dropout = 0.1};
  return on_ranks<std::vector<double>>(parallel::parse_plan(plan.parallel).ranks(),
                                       [&](int rank) { return train(plan, false, device_of(rank)).losses; });
}

}  // namespace

TEST_CASE("nccl, tensor parallel: products in chunks are bit-identical to whole ones in every order") {
  const ExactSums exact;
  struct Order {
    fake::Policy streams;
    simt::Order threads;
  };
  const Order orders[] = {{fake::Policy::lazy, simt::Order::forward},
                          {fake::Policy::eager, simt::Order::reverse},
                          {fake::Policy::random, simt::Order::random},
                          {fake::Policy::random, simt::Order::reverse}};
  uint64_t seed = 0;
  for (const Order& order : orders)
    for (const int n : thread_sanitized ? std::vector{2} : std::vector{2, 3, 8}) {
      const Orders scope(order.streams, order.threads, ++seed);
      CAPTURE(n);
      CAPTURE(seed);
      check_ranks(n, [&](int rank) {
        const bool large = n == 8;
        for (const bool sequence : {false, true}) {
          const std::vector<Shape> rows =
              sequence ? std::vector<Shape>{{1, 5 * n}, {3, n}, {0, n}} : std::vector<Shape>{{7}, {1}, {0}, {2, 5}};
          for (const Shape& r : rows) {
            if (large && r[0] == 0) continue;
            const auto expected = two_layers(device_of(rank), sequence, 1, r);
            for (const int64_t chunks : large ? std::vector<int64_t>{3} : std::vector<int64_t>{2, 3, 64}) {
              const auto found = two_layers(device_of(rank), sequence, chunks, r);
              for (size_t i = 0; i < found.size(); ++i)
                require(equal(found[i], expected[i]),
                        str("result ", i, " of rows ", r, sequence ? " in parts, " : ", ", chunks, " chunks"));
            }
          }
        }
      });
    }
}

TEST_CASE("nccl, tensor parallel: chunks are multiplied while others are on their way") {
  for (const bool sequence : {false, true}) {
    CAPTURE(sequence);
    std::atomic<int> products{0};
    check_ranks(2, [&](int rank) {
      dist::ProcessGroup& g = world();
      const Device device = device_of(rank);
      pass_compared_calls(device);
      // Rank 1 makes no call until rank 0's device has computed all products: none of them waited for another
      // chunk's sum.
      const Shape shape = sequence ? Shape{1, 16, 8} : Shape{8, 8};
      const Tensor x = noise_at(1, shape, device), w = noise_at(2, {8, 8}, device);
      const tp::Chunks chunks(shape, sequence, 4, device, g);
      if (rank == 1) until([&] { return products == 4; });
      tp::Pending sum = tp::sum_of_products(x, chunks, g, false, [&](const Tensor& rows) {
        const Tensor y = linear(rows, w);
        (void)y.to_vector<float>();  // waits until the stream has computed the products
        if (rank == 0) ++products;
        return y;
      });
      const Tensor all = linear(x.to(cpu), w.to(cpu)), got = sum.wait().to(cpu);
      const Tensor expected = mul_scalar(sequence ? all.narrow(1, 8 * rank, 8).contiguous() : all, 2);
      require(allclose(got, expected, 1e-5, 1e-5), "sums");
    });
  }
  // A gather overlaps with products, too: rank 1 gathers only the first chunk until rank 0 has computed its product.
  std::atomic<bool> multiplied{false};
  check_ranks(2, [&](int rank) {
    dist::ProcessGroup& g = world();
    const Device device = device_of(rank);
    pass_compared_calls(device);
    const Tensor own = noise_at(uint64_t(rank), {4, 2, 8}, device), w = noise_at(2, {8, 8}, device);
    const tp::Chunks chunks({4, 4, 8}, true, 4, device, g);
    std::vector<Tensor> found;
    const auto use = [&](const Tensor& rows, int64_t i) {
      found.push_back(linear(rows, w).to(cpu));
      if (i == 0) multiplied = true;
    };
    if (rank == 0) {
      tp::use_gathered(own, chunks, g, false, use);
    } else {
      for (int64_t i = 0; i < 4; ++i) {
        if (i == 1) until([&] { return multiplied.load(); });
        Tensor rows = tp::Pending::all_gather(chunks.of_part(own, i), tp::along_sequence, g).wait();
        found.push_back(linear(rows, w).view({-1, 8}).to(cpu));
      }
    }
    std::vector<Tensor> parts;
    for (uint64_t r = 0; r < 2; ++r) parts.push_back(noise_at(r, {4, 2, 8}, cpu));
    require(allclose(cat(found, 0), linear(cat(parts, 1), w.to(cpu)).view({16, 8}), 1e-5, 1e-5), "products");
  });
}

TEST_CASE("nccl, tensor parallel: training in chunks has the losses of training without") {
  const ExactSums exact;
  const std::pair<const char*, Plan> rows[] = {
      {"slices", {.parallel = "tp2"}},
      {"of 4", {.parallel = "dp2+tp2"}},
      {"sequence", {.parallel = "tp2", .cuts_sequences = true}},
      {"fp8", {.fp8 = true, .parallel = "tp2"}},
      {"fp8, sequence", {.fp8 = true, .parallel = "tp2", .cuts_sequences = true}},
      {"recomputed", {.parallel = "tp2", .cuts_sequences = true, .recompute = 1}},
      {"stages", {.parallel = "pp2+tp2"}},
      {"stages in two parts", {.parallel = "pp2+tp2", .cuts_sequences = true, .schedule = "zb-h1"}}};
  for (const auto& [name, plan] : rows) {
    if (thread_sanitized && &plan != &rows[2].second) continue;
    CAPTURE(name);
    const auto entire = losses_in_chunks(plan, 1);
    for (const auto& other : entire) CHECK(other == entire[0]);
    CHECK(losses_in_chunks(plan, 3) == entire);
    CHECK(entire[0].front() != entire[0].back());
  }
  const Orders scope(fake::Policy::random, simt::Order::forward, 5);
  CHECK(losses_in_chunks(rows[2].second, 3) == losses_in_chunks(rows[2].second, 1));
}
