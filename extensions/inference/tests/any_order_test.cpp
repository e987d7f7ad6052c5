// A model and its engine may be destroyed in any order.
#include "tests/any_order.h"

#include "extensions/inference/engine.h"
#include "nn/models/gpt.h"

using namespace lockstep;
using namespace testing;

TEST_CASE("inference: a model and its engine are destroyed in every order") {
  destroy_in_every_order({{"InferenceEngine", 1, [](int) -> Owners {
                             auto gpt = std::make_shared<nn::GPT>(
                                 nn::GPT::Options{.vocab = 11, .context = 8, .layers = 2, .width = 8, .heads = 2});
                             auto engine = std::make_shared<inference::InferenceEngine>(
                                 inference::init_inference(*gpt, R"({"dtype": "fp32"})", {.log = nobody}));
                             engine->profile_model_time();
                             (*engine)(zeros({1, 4}, {.dtype = i64}));
                             return {gpt, engine};
                           }}});
}
