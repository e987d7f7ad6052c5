// Activation checkpointing: the same bits for every option, the memory it saves, and rejected models.
#include <doctest/doctest.h>

#include "dist/shard.h"
#include "nn/models/gpt.h"
#include "parallel/activation_checkpoints.h"
#include "tensor/memory.h"
#include "tests/devices.h"
#include "tests/parallel/util.h"

using namespace lockstep;
using namespace testing;
using parallel::ActivationCheckpoints;
using parallel::CheckpointOptions;

namespace {

constexpr int64_t layers = 3, width = 20, context = 7, batch = 3;
nn::GPT make_gpt() {
  manual_seed(1);
  return nn::GPT({.vocab = 11, .context = context, .layers = layers, .width = width, .heads = 2, .dropout = 0.2});
}

/// The loss and gradients of two micro-batches, each with its own dropout.
Tensors gradients(nn::GPT& model) {
  Tensors all;
  for (int micro = 0; micro < 2; ++micro) {
    manual_seed(5);
    set_random_step(3, uint64_t(micro));
    const Tensor tokens = randint(0, 11, {batch, context});
    const Variable loss = model.loss(tokens, tokens);
    loss.backward();
    all["loss" + std::to_string(micro)] = loss.tensor();
  }
  for (auto& [name, grad] : copy_gradients(model)) all[name] = grad;
  all["random"] = rand({3});  // the generator must have advanced as without checkpoints
  return all;
}

/// Partitions in one buffer with slots for n checkpoints.
CheckpointOptions contiguous(int64_t n, bool cpu = false) {
  return {.partition_activations = true,
          .cpu_checkpointing = cpu,
          .contiguous_memory_optimization = true,
          .number_checkpoints = n};
}
int64_t held(Memory category) { return memory_report().category[int(category)].current; }

/// A block whose forward() has a parameter that is not a Variable.
struct Odd : nn::Layer<Odd> {
  Variable forward(const Variable& x, int times) { return x * double(times); }
};

}  // namespace

TEST_CASE(
    "activation checkpoints: every option is bit-identical to the plain run, dropout included, at 1, 2 and 4 ranks") {
  struct Row {
    const char* name;
    CheckpointOptions options;
    size_t blocks = 3;
    bool grouped = false;
  };
  CheckpointOptions all_of_them = contiguous(5, true);
  all_of_them.profile = true;
  const Row rows[] = {
      {"plain", {}},
      {"every second", {.every = 2}, 2},
      {"only the first", {.every = 9}, 1},
      {"cpu", {.cpu_checkpointing = true}},
      {"synchronize and profile", {.synchronize_checkpoint_boundary = true, .profile = true}},
      {"partition, no group", {.partition_activations = true}},
      {"contiguous", contiguous(3)},
      {"partition", {.partition_activations = true}, 3, true},
      {"partition, cpu", {.partition_activations = true, .cpu_checkpointing = true}, 3, true},
      {"partition, contiguous, cpu", all_of_them, 3, true},
  };
  for (const Row& row : rows) {
    for (const int ranks : {1, 2, 4}) {
      if (ranks > 1 && !row.grouped) continue;
      INFO(row.name, ", ranks ", ranks);
      on_ranks(ranks, [&](int) {
        nn::GPT plain = make_gpt(), model = make_gpt();
        CheckpointOptions options = row.options;
        if (row.grouped) options.group = &dist::world();
        ActivationCheckpoints checkpoints(options);
        CHECK(checkpoints.wrap_blocks(model).size() == row.blocks);
        CHECK(checkpoints.notes().empty() != (options.partition_activations && (!row.grouped || ranks == 1)));
        const Tensors expected = gradients(plain);
        for (int time = 0; time < 2; ++time) {  // the second time, buffers are reused
          CHECK(differing(expected, gradients(model)) == "");
          model.zero_grad();
        }
      });
    }
  }
}

TEST_CASE("activation checkpoints: memory between forward and backward, by category") {
  const OnCpu on_cpu;
  const int64_t input = batch * context * width * 4;
  struct Row {
    const char* name;
    CheckpointOptions options;
    int64_t offload, activation;
  };
  const Row rows[] = {{"plain", {}, 0, layers * input},
                      {"cpu", {.cpu_checkpointing = true}, layers * input, 0},
                      {"contiguous", contiguous(5), 0, 5 * input},
                      {"both", contiguous(layers, true), layers * input, 0}};
  const Tensor tokens = zeros({batch, context}, {.dtype = i64});
  const auto all = [] { return memory_report().total.current; };
  nn::GPT plain = make_gpt();
  const int64_t start = all();
  int64_t without = 0;
  {
    const Variable loss = plain.loss(tokens, tokens);
    without = all() - start;
  }
  CHECK(all() == start);
  int64_t rest = -1;  // activations outside of the blocks, which no option changes
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const int64_t before = all(), offload = held(Memory::offload), activation = held(Memory::activation);
    {
      nn::GPT model = make_gpt();
      ActivationCheckpoints checkpoints(row.options);
      checkpoints.wrap_blocks(model);
      const int64_t model_only = all();
      const Variable loss = model.loss(tokens, tokens);
      CHECK(held(Memory::offload) - offload == row.offload);
      const int64_t activations = held(Memory::activation) - activation;
      if (rest < 0) rest = activations - row.activation;
      CHECK(rest >= 0);
      CHECK(activations == rest + row.activation);
      CHECK(all() - model_only < without / 3);
      loss.backward();
      if (!row.options.contiguous_memory_optimization) CHECK(held(Memory::offload) == offload);
    }
    CHECK(held(Memory::offload) == offload);
    CHECK(held(Memory::activation) == activation);
    CHECK(all() == before);
  }
}

TEST_CASE("activation checkpoints: each rank of a partition holds its part, to the byte") {
  const OnCpu on_cpu;
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    on_processes(ranks, [&](int rank) {
      nn::GPT model = make_gpt();
      ActivationCheckpoints checkpoints(
          {.partition_activations = true, .cpu_checkpointing = true, .group = &dist::world()});
      checkpoints.wrap_blocks(model);
      const Tensor tokens = zeros({batch, context}, {.dtype = i64});
      const int64_t before = held(Memory::offload);
      const Variable loss = model.loss(tokens, tokens);
      const int64_t expected = 4 * layers * dist::shard_range(batch * context * width, ranks, rank).size(),
                    got = held(Memory::offload) - before;
      LOCKSTEP_CHECK(got == expected, "expected ", expected, " bytes, got ", got);
      loss.backward();
      LOCKSTEP_CHECK(held(Memory::offload) == before, "expected that backward frees them");
    });
  }
}

TEST_CASE("activation checkpoints: by call, with several inputs, some of them no numbers, empty or undefined") {
  for (const int ranks : {1, 3}) {
    on_ranks(ranks, [&](int) {
      manual_seed(2);
      const Variable x(randn({5, 3}), true), none(empty({0, 3}), true), one(full({1}, 2), true);
      const Tensor index = Tensor::from<int64_t>({4, 0, 2}, {3});
      const auto piece = [](const std::vector<Variable>& in) {
        return sum(index_select(dropout(square(in[0]), 0.3), 0, in[1].tensor())) + sum(in[2]) +
               sum(in[3]) * (in[4].defined() ? 0. : 3.);
      };
      const auto run = [&](const std::function<Variable(const std::vector<Variable>&)>& call) {
        set_random_step(9);
        for (Variable leaf : {x, none, one}) leaf.clear_grad();
        call({x, Variable(index), none, one, Variable()}).backward();
        return std::vector<Tensor>{x.grad().clone(), one.grad().clone()};
      };
      ActivationCheckpoints checkpoints(
          {.partition_activations = true, .cpu_checkpointing = true, .group = &dist::world()});
      const auto plain = run(piece), again = run([&](const auto&in) { return checkpoints(piece, in); });
      CHECK((equal(plain[0], again[0]) && equal(plain[1], again[1])));
    });
  }
}

TEST_CASE("activation checkpoints: the profile counts and times the calls of each block") {
  nn::Sequential model(linear(8, 8), nn::ReLU(), linear(8, 8));
  ActivationCheckpoints checkpoints({.profile = true, .every = 2});
  CHECK(checkpoints.wrap_blocks(model) == std::vector<std::string>{"0", "2"});
  for (int i = 0; i < 3; ++i) sum(model(Variable(ones({2, 8}), true))).backward();
  sum(model(Variable(ones({2, 8}), true)));
  const auto times = checkpoints.times();
  REQUIRE(times.size() == 2);
  for (const auto& t : times) {
    CHECK(t.forwards == 4);
    CHECK(t.backwards == 3);
    CHECK(t.forward_ms > 0);
    CHECK(t.backward_ms > 0);
  }
  CHECK(contains(checkpoints.report(), "checkpoint"));
  CHECK(contains(checkpoints.report(), "\n2 "));
  checkpoints.reset_times();
  CHECK(checkpoints.times().empty());
  {
    const NoGrad scope;
    model(Variable(ones({2, 8})));
  }
  CHECK(checkpoints.times().empty());
}

TEST_CASE("activation checkpoints: invalid options and models are rejected with the reason") {
  CHECK_ERROR(ActivationCheckpoints({.contiguous_memory_optimization = true, .number_checkpoints = 2}),
              "needs partition_activations");
  CHECK_ERROR(ActivationCheckpoints(contiguous(0)), "needs number_checkpoints");
  CHECK_ERROR(ActivationCheckpoints({.every = 0}), "expected every >= 1, got 0");
  CHECK_ERROR(ActivationCheckpoints({.number_checkpoints = -1}), "expected number_checkpoints >= 0, got -1");
  CHECK(contains(ActivationCheckpoints({.number_checkpoints = 1}).notes().at(0), "which is off"));
  Mlp net;
  CHECK_ERROR(ActivationCheckpoints().wrap_blocks(net),
              "expected a module with blocks (a ModuleList or Sequential), got Mlp");
  nn::GPT model = make_gpt();
  ActivationCheckpoints small(contiguous(2)), two(contiguous(2));
  small.wrap_blocks(model);
  CHECK_ERROR(ActivationCheckpoints().wrap_blocks(model), "expected a module whose calls are not wrapped yet");
  const Tensor tokens = zeros({2, context}, {.dtype = i64});
  CHECK_ERROR(model.loss(tokens, tokens), "number_checkpoints 2 is too small");
  const auto twice = [](const std::vector<Variable>& in) { return in[0] * 2.0; };
  const Variable a = two(twice, {Variable(ones({4}), true)});
  CHECK_ERROR(two(twice, {Variable(ones({5}), true)}), "the buffer has slots of 4 f32 elements, got one of 5 f32");
  CHECK(two(twice, {Variable(ones({3}), true)}).numel() == 3);

  Odd odd;
  odd.wrap_call([](const auto& inputs, const auto& run) { return run(inputs); });
  CHECK_ERROR(odd(Variable(ones({2}), true), 3),
              "[Odd] its calls are wrapped (checkpointed): expected variables as arguments");
  {
    const NoGrad scope;
    CHECK(odd(Variable(ones({2})), 3).tensor()[0].item() == 3);
  }
  int calls = 0;
  ActivationCheckpoints by_call;
  const Variable changing = by_call([&](const auto& in) { return ++calls == 1 ? in[0] * 2.0 : (in[0] * 2.0).to(bf16); },
                                    {Variable(ones({3}), true)});
  CHECK_ERROR(sum(changing).backward(), "[checkpoint] the second run returned (3) bf16, the first (3) f32");
}
