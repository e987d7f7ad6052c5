// A model, its scales and an engine with them may be destroyed in any order.
#include "tests/any_order.h"

#include "autograd/autocast.h"
#include "extensions/fp8/scaling.h"

using namespace lockstep;
using namespace ::testing;

TEST_CASE("fp8: a model and its scales are destroyed in every order") {
  destroy_in_every_order({
      {"engine, fp8", 1, [](int) { return with_engine(R"({"train_batch_size": 16, "fp8": {"enabled": true}})"); }},
      {"Fp8Scaling", 1,
       [](int) -> Owners {
         auto net = std::make_shared<Borrowed>();
         auto fp8 = std::make_shared<nn::Fp8Scaling>(*net);
         const Autocast scope(bf16);
         auto output = std::make_shared<Variable>((*net)(borrowed_input()));
         return {net, fp8, output};
       }},
  });
}
