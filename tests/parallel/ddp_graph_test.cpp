// DistributedDataParallel and the graph: errors in backward, unused parameters, static graphs, models that differ
// between ranks.
#include <doctest/doctest.h>

#include "autograd/activation_checkpoint.h"
#include "tests/parallel/util.h"

using namespace lockstep;
using namespace lockstep::parallel;
using namespace testing;

TEST_CASE("DDP: unused parameters are named in the same backward, on all ranks") {
  const std::string text = message([] {
    on_ranks(3, [](int rank) {
      Branches net;
      net.use_right = rank != 1;
      net.use_never = true;
      DistributedDataParallel ddp(net, {.bucket_mib = 1e-6});
      sum(ddp(ones({2, 3}))).backward();
    });
  });
  for (const char* part : {"[rank 1] [ddp] 2 of 6 parameters got no gradient in this step: right.weight, right.bias",
                           "find_unused_parameters = true", "static_graph = true", "requires_grad_(false)"}) {
    CHECK_MESSAGE(contains(text, part), text);
  }
  on_ranks(1, [](int) {  // with one rank it is a plain Error, and the next backward works
    Branches net;
    DistributedDataParallel ddp(net);
    CHECK_ERROR(sum(ddp(ones({2, 3}))).backward(),
                "[ddp] 2 of 6 parameters got no gradient in this step: never.weight, never.bias");
    net.use_never = true;
    sum(ddp(ones({2, 3}))).backward();
    CHECK(net.never.weight.grad().defined());
  });
}

TEST_CASE("DDP: find_unused_parameters sends zeros for unused parameters; those unused on all ranks get no gradient") {
  for (const bool overlap : {true, false})
    for (const double mib : {1e-6, 25.}) {
      INFO("overlap ", overlap, ", mib ", mib);
      alike(3, [&](int rank) {
        manual_seed(1);
        Branches net;
        DistributedDataParallel ddp(net, {.bucket_mib = mib, .overlap = overlap, .find_unused_parameters = true});
        Tensors last;
        for (int step = 0; step < 3; ++step) {
          net.zero_grad();
          net.use_left = rank != (step + 1) % 3;  // in steps 0 and 1 one rank's output uses no parameter at all
          net.use_right = rank == step;
          Variable x(ones({2, 3}), true);
          sum(ddp(x)).backward();
          last = copy_gradients(net);
          CHECK(last.size() == 4);
          CHECK(max(abs(sub(last["left.bias"], full({2}, 2 * 2. / 3)))).item() < 1e-6);
          CHECK(max(abs(sub(last["right.bias"], full({2}, 2 * 1. / 3)))).item() < 1e-6);
          CHECK_FALSE(net.never.weight.grad().defined());
        }
        return last;
      });
    }
}

TEST_CASE("DDP: find_unused_parameters must see the forward") {
  for (const bool had_forward : {false, true}) {
    const auto passes = [&](int) {
      Branches net;
      DistributedDataParallel ddp(net, {.find_unused_parameters = true});
      if (had_forward) sum(ddp(ones({2, 3}))).backward();
      net.zero_grad();
      sum(net(ones({2, 3}))).backward();
    };
    CHECK_ERROR(on_ranks(2, passes), "find_unused_parameters: expected the forward to run through ddp.call()");
  }
}

TEST_CASE("DDP: find_unused_parameters with several forwards in flight, and a loss that call() did not see") {
  on_ranks(2, [&](int) {
    Branches net;
    DistributedDataParallel ddp(net, {.find_unused_parameters = true});
    net.use_right = false;
    const Variable first = ddp(ones({2, 3}));
    net.use_left = false, net.use_right = true;
    const Variable second = ddp(ones({2, 3}));
    sum(first).backward();
    CHECK(net.left.bias.grad().defined());
    CHECK_FALSE(net.right.bias.grad().defined());
    net.use_left = true, net.use_right = false;
    const Variable third = ddp(ones({2, 3}));
    net.zero_grad();
    sum(second).backward();
    CHECK(net.right.bias.grad().defined());
    CHECK_FALSE(net.left.bias.grad().defined());
    sum(third).backward();
  });
  const auto reads_besides = [](int) {
    Branches net;
    DistributedDataParallel ddp(net, {.find_unused_parameters = true});
    net.use_right = false;
    (sum(ddp(ones({2, 3}))) + sum(net.right.bias)).backward();
  };
  CHECK_ERROR(on_ranks(2, reads_besides),
              "right.bias got a gradient, but what ddp.call() returned does not depend on it");
}

TEST_CASE("DDP: a static graph is counted once; unused parameters need no walk; a change is an error with names") {
  const auto run = [](bool more, bool fewer) {
    return message([&] {
      on_ranks(2, [&](int rank) {
        Branches net;
        DistributedDataParallel ddp(net, {.static_graph = true});
        for (int step = 0; step < 3; ++step) {
          net.zero_grad();
          net.use_never = more && step == 2 && rank == 1;
          net.use_right = !(fewer && step == 2 && rank == 1);
          sum(ddp(ones({2, 3}))).backward();
          CHECK(net.left.bias.grad().to_vector<float>() == std::vector<float>{2, 2});
          CHECK_FALSE(net.never.bias.grad().defined());
        }
      });
    });
  };
  CHECK(run(false, false) == "(no error)");
  const std::string more = run(true, false), fewer = run(false, true);
  CHECK_MESSAGE(contains(more, "[rank 1] [ddp] static_graph: never."), more);
  CHECK_MESSAGE(contains(more, "got a gradient, but none in the first backward"), more);
  CHECK_MESSAGE(
      contains(fewer, "2 of 6 parameters got fewer gradients than in the first backward: right.weight, right.bias"),
      fewer);
}

TEST_CASE(
    "DDP: checkpointed blocks and shared parameters arrive once; a backward inside a backward needs static_graph") {
  const auto grads = on_ranks<Tensors>(2, [&](int rank) {
    manual_seed(4);
    nn::Linear layer({.in = 3, .out = 3});
    DistributedDataParallel ddp(layer, {.bucket_mib = 1e-6});
    const Tensor x = randn({4, 3});
    Tensors all;
    for (const bool checkpointed : {false, true}) {
      layer.zero_grad();
      const auto block = [&](const Variable& v) { return tanh(layer(v)); };
      Variable y = Variable(mul_scalar(x, rank + 1));
      for (int i = 0; i < 3; ++i) y = checkpointed ? checkpoint(block, y) : block(y);
      sum(y).backward();
      for (auto& [name, grad] : copy_gradients(layer)) all[name + (checkpointed ? " again" : "")] = grad;
    }
    return all;
  });
  CHECK(max(abs(sub(grads[0].at("weight"), grads[0].at("weight again")))).item() < 1e-5);
  const auto inner = [](bool static_graph) {
    return message([&] {
      on_ranks(2, [&](int) {
        nn::Linear layer({.in = 2, .out = 1, .bias = false});
        DistributedDataParallel ddp(layer, {.static_graph = static_graph});
        for (int step = 0; step < 2; ++step) {
          layer.zero_grad();
          const Variable y = layer(ones({1, 2}));
          Variable z = y * 1.;
          z.on_grad([&](const Tensor&) {
            const EnableGrad record;
            sum(layer(ones({1, 2}))).backward();
            return Tensor();
          });
          sum(z).backward();
          CHECK(layer.weight.grad().to_vector<float>() == std::vector<float>{2, 2});
        }
      });
    });
  };
  CHECK(inner(true) == "(no error)");
  CHECK(contains(inner(false), "weight got its gradient 2 times in one backward"));
}

TEST_CASE("DDP: gradients add up over passes: retain_graph, two losses in a step, hooks and grad() between them") {
  on_ranks(2, [&](int rank) {
    nn::Linear layer({.in = 2, .out = 1});
    DistributedDataParallel ddp(layer);
    const Variable y = sum(layer(full({1, 2}, rank + 1.)));
    y.backward({}, true);
    CHECK(layer.weight.grad().to_vector<float>() == std::vector<float>{1.5, 1.5});
    y.backward();
    CHECK(layer.weight.grad().to_vector<float>() == std::vector<float>{3, 3});
    sum(layer(full({1, 2}, rank + 1.))).backward();
    CHECK(layer.weight.grad().to_vector<float>() == std::vector<float>{4.5, 4.5});
    layer.zero_grad();
    const int hook = layer.weight.on_grad([](const Tensor& g) { return mul_scalar(g, 10); });
    {
      const auto local = ddp.no_sync();
      sum(layer(ones({1, 2}))).backward();
    }
    // grad() neither reduces nor discards the local gradient.
    CHECK(grad(sum(layer(ones({1, 2}))), {layer.weight})[0].tensor().to_vector<float>() == std::vector<float>{10, 10});
    sum(layer(ones({1, 2}))).backward();
    CHECK(layer.weight.grad().to_vector<float>() == std::vector<float>{20, 20});
    layer.weight.remove_hook(hook);
  });
}

TEST_CASE("DDP: ranks with other models are told which parameter differs, before anything is sent") {
  struct Row {
    const char* part;  // of the message
    nn::Linear::Options (*sizes)(int rank) = [](int) { return nn::Linear::Options{.in = 3, .out = 4}; };
    void (*change)(nn::Linear& module, int rank) = [](nn::Linear&, int) {};
    double (*bucket_mib)(int rank) = [](int) { return 25.; };
  };
  const Row rows[] = {{.part = "rank 0 has 'parameter weight f32 (4, 3)', rank 2 has 'parameter weight f32 (5, 3)'",
                       .sizes = [](int r) { return nn::Linear::Options{.in = 3, .out = r == 2 ? 5 : 4}; }},
                      {.part = "rank 0 has 'parameter bias f32 (4)', rank 1 has nothing",
                       .sizes = [](int r) { return nn::Linear::Options{.in = 3, .out = 4, .bias = r != 1}; }},
                      {.part = "rank 1 has 'parameter weight f64 (4, 3)'",
                       .change = [](nn::Linear& m, int r) { m.to(r == 1 ? f64 : f32); }},
                      {.part = "rank 1 has 'frozen weight f32 (4, 3)', rank 2 has 'frozen weight",
                       .change = [](nn::Linear& m, int r) { m.requires_grad_(r == 0); }},
                      {.part = "expected a module with parameters that require grad, got none in Linear",
                       .change = [](nn::Linear& m, int) { m.requires_grad_(false); }},
                      {.part = "line 1 is the first that differs: rank 0 has 'options bucket_mib 1,",
                       .bucket_mib = [](int r) { return r ? 25. : 1.; }}};
  for (const Row& row : rows) {
    const auto wrap = [&](int rank) {
      nn::Linear module(row.sizes(rank));
      row.change(module, rank);
      DistributedDataParallel ddp(module, {.bucket_mib = row.bucket_mib(rank)});
    };
    CHECK_ERROR(on_ranks(3, wrap), row.part);
  }
}
