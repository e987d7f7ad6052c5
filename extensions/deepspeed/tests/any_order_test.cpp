// A model, an engine with reports and a 1-bit optimizer may be destroyed in any order.
#include "tests/any_order.h"

#include "extensions/deepspeed/onebit/onebit.h"

using namespace lockstep;
using namespace testing;

TEST_CASE("deepspeed: a model, its engine and its optimizer are destroyed in every order") {
  destroy_in_every_order({
      {"engine, ZeRO 1, with reports", 1,
       [](int) {
         return with_engine(R"({"train_batch_size": 16, "zero_optimization": {"stage": 1},
         "flops_profiler": {"enabled": true, "profile_step": 3}, "comms_logger": {"enabled": true},
         "activation_checkpointing": {"enabled": true}})");
       }},
      {"1-bit Adam on a group", 2,
       [](int) -> Owners {
         auto net = std::make_shared<Borrowed>();
         auto group = dist::world().new_group({0, 1}, "pair");
         auto adam = std::make_shared<onebit::OneBitAdam>(net->parameters(),
                                                          onebit::OneBitAdamOptions{.freeze_step = 1}, group.get());
         for (int step = 0; step < 2; ++step) {
           adam->zero_grad();
           borrowed_loss((*net)(borrowed_input())).backward();
           adam->step();
         }
         return {net, group, adam};
       }},
  });
}
