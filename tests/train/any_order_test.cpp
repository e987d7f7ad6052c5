// Objects that refer to each other may be destroyed in any order. AddressSanitizer finds mistakes here.
#include <doctest/doctest.h>

#include "nn/models/gpt.h"
#include "parallel/activation_checkpoints.h"
#include "parallel/ddp.h"
#include "parallel/moe/layer.h"
#include "pipeline/layers.h"
#include "tests/any_order.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"
#include "train/experts.h"
#include "train/trainer.h"

using namespace lockstep;
using namespace testing;

namespace {

std::optional<TempDir> saver_folder;  // shared by all ranks, which are threads

Owners with_zero(int stage) {
  auto net = std::make_shared<Borrowed>();
  auto adamw = std::make_shared<optim::AdamW>(net->parameters(), optim::AdamWOptions{});
  auto zero =
      std::make_shared<zero::Zero>(*net, *adamw, zero::ZeroOptions{.stage = stage, .param_persistence_threshold = 20});
  borrowed_loss((*net)(borrowed_input())).backward();
  zero->step();
  auto output = std::make_shared<Variable>((*net)(borrowed_input()));
  return {net, adamw, zero, output};
}

std::shared_ptr<nn::GPT> small_gpt() {
  return std::make_shared<nn::GPT>(nn::GPT::Options{.vocab = 11, .context = 8, .layers = 2, .width = 8, .heads = 2});
}

const std::vector<Order> orders = {
    {"engine, ZeRO 1", 1,
     [](int) {
       return with_engine(R"({"train_batch_size": 16, "zero_optimization": {"stage": 1},
         "activation_checkpointing": {"enabled": true}})");
     }},
    {"engine, ZeRO 3", 2,
     [](int) {
       return with_engine(R"({"train_batch_size": 32, "zero_optimization":
         {"stage": 3, "stage3_param_persistence_threshold": 20}, "activation_checkpointing": {"enabled": true}})");
     }},
    {"ZeRO 0", 2, [](int) { return with_zero(0); }},
    {"ZeRO 2", 2, [](int) { return with_zero(2); }},
    {"ZeRO 3", 2, [](int) { return with_zero(3); }},
    {"DDP", 2,
     [](int) -> Owners {
       auto net = std::make_shared<Borrowed>();
       auto ddp = std::make_shared<parallel::DistributedDataParallel>(
           *net, parallel::DdpOptions{.find_unused_parameters = true});
       borrowed_loss((*ddp)(borrowed_input())).backward();
       auto output = std::make_shared<Variable>((*ddp)(borrowed_input()));
       return {net, ddp, output};
     }},
    {"ActivationCheckpoints", 1,
     [](int) -> Owners {
       auto net = std::make_shared<Borrowed>();
       std::shared_ptr<parallel::ActivationCheckpoints> checkpoints(new parallel::ActivationCheckpoints(), [](auto* c) {
         c->unwrap_blocks();
         delete c;
       });
       checkpoints->wrap_blocks(*net);
       auto output = std::make_shared<Variable>((*net)(Variable(randn({4, 16}), true)));
       return {net, checkpoints, output};
     }},
    {"Trainer", 1,
     [](int) -> Owners {
       train::TrainOptions o;
       o.json = true;
       auto team = std::make_shared<train::Team>(&dist::world());
       auto job = std::make_shared<train::TrainJob>(o, *team);
       auto net = std::make_shared<Borrowed>();
       train::TrainerOptions t{
           .loss = [](const Variable& y, const Tensor& target) { return mse_loss(y, target); },
           .data = data::share(borrowed_samples()),
           .evaluate = data::share(borrowed_samples()),
           .optimizer =
               [](nn::Module& m) { return std::make_unique<optim::AdamW>(m.parameters(), optim::AdamWOptions{}); }};
       auto trainer = std::make_shared<train::Trainer>(*job, *net, t);
       trainer->evaluate(1);
       return {team, job, net, trainer};
     }},
    {"experts", 1,
     [](int) -> Owners {
       auto layer = std::make_shared<moe::MoeLayer>(moe::MoeOptions{.width = 8, .experts = 2});
       auto counts = std::make_shared<train::ExpertCounts>(*layer, true);
       auto output = std::make_shared<Variable>((*layer)(Variable(randn({4, 8}))));
       return {layer, counts, output};
     }},
    {"pipeline", 2,
     [](int) -> Owners {
       auto net = small_gpt();
       auto [layers, loss] = pipeline::layers_of(net);
       auto group = dist::world().new_group({0, 1}, "stages");
       auto stages = std::make_shared<pipeline::PipelineEngine>(layers, pipeline::EngineOptions{.micro_batches = 2},
                                                                loss, group.get());
       stages->train_batch([](int64_t) {
         const Tensor tokens = zeros({1, 4}, {.dtype = i64});
         return pipeline::Sample{{tokens}, {tokens}};
       });
       return {net, group, stages};
     }},
    {"a checkpoint that is being written", 2,
     [](int) -> Owners {
       static thread_local int saves = 0;
       auto group = dist::world().new_group({0, 1}, "savers");
       auto saver = std::make_shared<checkpoints::Saver>(saver_folder->str(), group.get(),
                                                         checkpoints::SaveOptions{.async = true, .warn = nobody});
       saver->save(str("number", saves++), {.pieces = {checkpoints::full("model.w", ones({100000}))}});
       return {group, saver};
     }},
    {"a collective that is on its way", 2,
     [](int) -> Owners {
       auto group = dist::world().new_group({0, 1}, "pair");
       auto tensor = std::make_shared<Tensor>(ones({50000}));
       auto work = std::make_shared<dist::Work>(group->all_reduce(*tensor, {.async = true}));
       return {group, tensor, work};
     }},
    {"schedules", 1,
     [](int) -> Owners {
       auto net = std::make_shared<Borrowed>();
       auto sgd = std::make_shared<optim::SGD>(net->parameters(), optim::SGDOptions{.lr = 0.1});
       auto steps = std::make_shared<optim::WarmupLR>(*sgd, optim::WarmupLR::Options{});
       return {net, sgd, steps};
     }},
    {"loaders", 1,
     [](int) -> Owners {
       auto loader = std::make_shared<data::DataLoader<>>(borrowed_samples(),
                                                          data::DataLoader<>::Options{.batch_size = 4, .workers = 2});
       auto again = std::make_shared<data::RepeatingLoader<data::Example>>(*loader);
       again->next();
       auto iterator = std::make_shared<data::DataLoader<>::Iterator>(loader->begin());
       return {loader, again, iterator};
     }},
};

}  // namespace

TEST_CASE("objects that know each other are destroyed in every order") {
  saver_folder.emplace();
  destroy_in_every_order(orders);
  saver_folder.reset();
}

TEST_CASE("a module that moves or outlives its listeners keeps no hook of theirs") {
  auto first = std::make_unique<Borrowed>();
  std::optional<parallel::ActivationCheckpoints> checkpoints;
  checkpoints.emplace();
  checkpoints->wrap_blocks(*first);
  const nn::Module::Calls calls = first->body.calls();
  const int id = first->body.before_forward([](nn::Module&, const std::vector<Variable>&) { fail("a dead listener"); });
  Borrowed moved(std::move(*first));
  first.reset();
  CHECK(calls.exist());
  CHECK_ERROR(moved(borrowed_input()), "a dead listener");
  calls.remove_hook(id);
  CHECK_ERROR_IS(moved(borrowed_input()), "(no error)");
  checkpoints->unwrap_blocks();
  for (auto& [name, module] : moved.named_modules()) CHECK_FALSE(module->is_wrapped());
}

TEST_CASE("Errors of parameters that ZeRO 3 has emptied name ZeRO, also after ZeRO is gone") {
  dist::spawn(2, [](int) {
    Owners all = with_zero(3);
    all[2].reset();
    Borrowed& net = *static_cast<Borrowed*>(all[0].get());
    CHECK_ERROR(net(borrowed_input()), "zero unit");
  });
}
