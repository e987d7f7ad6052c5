// init_inference(): its configuration, Transformers' Llamas under tensor parallelism, weights from checkpoints of every
// kind, blocks offloaded to host memory and files, expert parallelism, and rejected calls.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "data/files.h"
#include "data/safetensors.h"
#include "extensions/hugging_face/pretrained.h"
#include "extensions/hugging_face/tests/golden_folders.h"
#include "extensions/inference/engine.h"
#include "extensions/inference/heads.h"
#include "nn/init.h"
#include "parallel/moe/expert_parallel.h"
#include "tests/apart.h"
#include "tests/messages.h"
#include "tests/ranks.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace testing;
using data::Json;
using data::SafeTensors;
using inference::init_inference;

namespace {

using Ids = std::vector<int64_t>;

const nn::GPT::Options small{.vocab = 50, .context = 32, .layers = 2, .width = 16, .heads = 4};
const Tensor some_tokens = Tensor::from(Ids{3, 1, 4, 1, 5, 9, 2, 6, 5, 3}, {2, 5}).to(cpu);
const char* const llamas[] = {"main", "mha", "wide", "llama3", "linear", "yarn"};  // golden folders
const std::string tp2 = R"({"tp": {"tp_size": 2}})";
const inference::InitArgs quiet{.log = [](const std::string&) {}};

std::string line_of(const inference::InferenceConfig& c, const std::string& key) {
  const std::string text = inference::to_text(c);
  const size_t at = ("\n" + text).find("\n" + key + " ");
  return at == std::string::npos ? "(no line)" : text.substr(at, text.find('\n', at) - at);
}

/// The errors of all ranks, one per line.
std::string message_of_ranks(int n, const std::function<void(int)>& fn) {
  std::string text;
  for (const std::string& one : on_ranks<std::string>(n, [&](int rank) { return message([&] { fn(rank); }); }))
    text += one + "\n";
  return text;
}

}  // namespace

TEST_CASE("inference config: keys, their aliases and meanings") {
  const struct {
    const char *json, *key, *value, *mark;
  } rows[] = {
      {R"({})", "dtype", "null", "(default here; DeepSpeed: fp16)"},
      {R"({"dtype": "torch.float16"})", "dtype", "\"fp16\"", "(from file)"},
      {R"({"dtype": "half"})", "dtype", "\"fp16\"", "(from file)"},
      {R"({"dtype": "FLOAT"})", "dtype", "\"fp32\"", "(from file)"},
      {R"({"dtype": "bfloat"})", "dtype", "\"bf16\"", "(from file)"},
      {R"({"dtype": "torch.bfloat16"})", "dtype", "\"bf16\"", "(from file)"},
      {R"({"tp": {"tp_size": 4}})", "tensor_parallel.tp_size", "4", "(from file)"},
      {R"({"mp_size": 2})", "tensor_parallel.tp_size", "2", "(from file)"},
      {R"({"mp_size": 2, "tensor_parallel": {"tp_size": 2}})", "tensor_parallel.tp_size", "2", "(from file)"},
      {R"({"moe": true})", "moe.enabled", "true", "(from file)"},
      {R"({"moe": {"num_experts": 8, "ep_size": 2}})", "moe.num_experts", "[8]", "(from file)"},
      {R"({"moe_experts": [4]})", "moe.num_experts", "[4]", "(from file)"},
      {R"({"moe_type": "residual", "ep_size": 2})", "moe.type", "\"residual\"", "(from file)"},
      {R"({"kernel_inject": true})", "replace_with_kernel_inject", "true", "the same kernels serve every model"},
      {R"({"use_triton": true, "triton_autotune": true})", "triton_autotune", "true", "no effect"},
      {R"({"replace_method": "auto", "return_tuple": true})", "replace_method", "\"auto\"", "no effect"},
      {R"({"injection_dict": {"TransformerBlock": ["mlp.down"]}})", "injection_policy",
       "{\"TransformerBlock\": [\"mlp.down\"]}", "(from file)"},
      {R"({"max_tokens": 64, "min_tokens": 2})", "max_out_tokens", "64", "(from file)"},
      {R"({"tm": false})", "triangular_masking", "false", "(from file)"},
      {R"({"ckpt_config": {"checkpoint_dir": "x"}})", "checkpoint_config.checkpoint_dir", "\"x\"", "(from file)"},
      {R"({"quant": [true, 8], "dtype": "int8"})", "quant.weight.q_groups", "8", "(from file)"},
      {R"({"zero": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": true}}})", "zero.offload_param.device",
       "\"cpu\"", "(from file)"},
      {R"({"training_mp_size": 4})", "training_mp_size", "4", "checkpoints hold whole tensors"},
      {R"({"tensor_parallel": {"tp_grain_size": 32, "mpu": null}})", "tensor_parallel.tp_grain_size", "32",
       "no effect"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.json);
    const inference::InferenceConfig c = inference::read_config(row.json);
    const std::string line = line_of(c, row.key);
    CHECK_MESSAGE(contains(line, std::string(" ") + row.value + " "), line);
    CHECK_MESSAGE(contains(line, row.mark), line);
    CHECK(inference::to_json(inference::read_config(inference::to_json(c).dump())) == inference::to_json(c));
  }
  CHECK(inference::read_config(R"({"checkpoint": {"type": "x", "checkpoints": ["a.safetensors", "/b"], "version": 1},
                                  "base_dir": "here"})")
            .checkpoint_files() == std::vector<std::string>{"here/a.safetensors", "/b"});
  CHECK(inference::read_config(R"({"moe": false, "ep_size": 4})").ep() == 1);
  CHECK(contains(inference::config_reference(), "`tp` is `tensor_parallel`"));
}

TEST_CASE("inference config: invalid values are rejected with the reason") {
  const std::pair<const char*, const char*> rows[] = {
      {R"({"dtype": "float8"})", "'float8' is not a dtype; known: fp32, float32"},
      {R"({"tensor_paralel": {}})", "tensor_paralel: no such key; did you mean tensor_parallel?"},
      {R"({"tp": {"tp_sise": 2}})", "did you mean tp_size?"},
      {R"({"mp_size": 2, "tp": {"tp_size": 4}})", "the file says tensor_parallel.tp_size already, and it is"},
      {R"({"tp": {"mpu": {"x": 1}}})", "give the group to init_inference()"},
      {R"({"mpu": 3})", "give the group to init_inference()"},
      {R"({"tp": {"tp_size": 0}})", "from 1 to"},
      {R"({"moe": {"type": "dense"}})", "standard or residual"},
      {R"({"checkpoint": "model.bin"})", "is a pickle, which runs code"},
      {R"({"checkpoint": {"checkpoints": ["a.pt"]}})", "is a pickle, which runs code"},
      {R"({"checkpoint": {"type": "ds_model"}})", "expected a folder, a safetensors file or"},
      {R"({"checkpoint": 3})", "expected a folder, a safetensors file or"},
      {R"({"checkpoint": "a", "checkpoint_config": {"checkpoint_dir": "b"}})", "leave one out"},
      {R"({"injection_policy": ["x"]})", "a module's type, and the names of its layers"},
      {R"({"dtype": "int8", "quant": {"weight": {"num_bits": 6}}})", "expected 4 or 8, got 6"},
      {R"({"dtype": "int8", "quant": {"weight": {"q_type": "asymmetric"}}})", "asymmetric codes are not supported"},
      {R"({"dtype": "int8", "quant": {"enabled": false}})", "quant disables quantisation"},
      {R"({"quant": {"weight": {"post_init_quant": {"a": 1}}}})", "write num_bits and q_groups"},
      {R"({"zero": {"stage": 3, "offload_param": {"device": "nvme"}}})", "expected a folder, as the device is nvme"},
      {R"({"max_out_tokens": 4, "min_out_tokens": 5})", "at least min_out_tokens 5, got 4"},
      {R"({"config": {"dtype": "fp16"}})", "write its keys at the top level"},
  };
  for (const auto& [json, text] : rows) CHECK_ERROR(inference::read_config(json), text);
  const std::pair<const char*, const char*> warned[] = {
      {R"({"quant": {"weight": {"num_bits": 4}}})", "quant.weight.num_bits: no effect, as dtype is not int8"},
      {R"({"mp_size": 2})", "mp_size: a deprecated name of tensor_parallel.tp_size"},
      {R"({"zero": {"stage": 3}})", "without zero.offload_param.device"},
      {R"({"zero": {"offload_param": {"device": "cpu"}}})", "ignored below stage 3"},
      {R"({"replace_with_kernel_inject": true})", "the same kernels serve every model"},
  };
  for (const auto& [json, text] : warned) {
    const auto warnings = inference::read_config(json).warnings;
    REQUIRE(warnings.size() == 1);
    CHECK_MESSAGE(contains(warnings[0], text), warnings[0]);
  }
  CHECK(inference::read_config(R"({"tp": {"tp_size": 2}, "moe": {"expert_group": null}})").warnings.empty());
}

TEST_CASE("inference: heads that ranks do not divide") {
  const struct {
    int64_t heads, kv_heads;
    int ranks;
    Ids queries, keys;
  } rows[] = {{4, 2, 2, {0, 1, 2, 3}, {0, 1}},
              {4, 2, 4, {0, 1, 2, 3}, {0, 0, 1, 1}},
              {4, 1, 2, {0, 1, 2, 3}, {0, 0}},
              {3, 3, 2, {0, 1, 2, -1}, {0, 1, 2, -1}},
              {2, 1, 4, {0, 1, -1, -1}, {0, 0, -1, -1}},
              {6, 3, 2, {0, 1, 2, 3, 4, 5}, {0, 0, 1, 1, 2, 2}},
              {9, 3, 2, {0, 1, 2, 3, 4, 5, 6, 7, 8, -1}, {0, 0, 0, 1, 1, 1, 2, 2, 2, -1}}};
  for (const auto& row : rows) {
    const auto plan = inference::plan_heads(row.heads, row.kv_heads, row.ranks);
    INFO(row.heads, " heads, ", row.ranks, " ranks");
    CHECK(plan.queries == row.queries);
    CHECK(plan.keys == row.keys);
  }
}

TEST_CASE("inference: texts of Llamas match Transformers on 1, 2 and 4 ranks") {
  const auto file = SafeTensors::open(golden + "/llama.safetensors");
  const std::pair<const char*, nn::Generation> rows[] = {
      {"greedy", {}}, {"greedy_rep1.3", {.repetition_penalty = 1.3}}, {"beam4", {.num_beams = 4}}};
  for (const std::string name : llamas) {
    const std::string folder = golden + "/llama_" + name;
    const Tensor tokens = file.tensor(name + "/input_ids").clone();
    const Tensor single = [&] {
      const NoGrad no_grad;
      return (*nn::from_pretrained(folder))(tokens).tensor();
    }();
    for (const int ranks : {1, 2, 4})
      on_ranks(ranks, [&](int) {
        INFO(name, " on ", ranks, " ranks");
        auto engine = init_inference(folder, str("{\"tensor_parallel\": {\"tp_size\": ", ranks, "}}"), quiet);
        CHECK(max_relative_difference(engine(tokens).tensor(), single) <= 1e-5);
        for (auto [golden, options] : rows) {
          const Ids text = file.tensor(name + "/" + golden).to_vector<int64_t>();
          const auto answer = text.begin() + 5;  // after the prompt
          options.max_new_tokens = text.end() - answer;
          CHECK(engine.generate(Ids(text.begin(), answer), options).tokens == Ids(answer, text.end()));
        }
      });
  }
}

TEST_CASE("inference: draws and candidates of a cut vocabulary are those of one rank") {
  const nn::GPT::Options wide{.vocab = 1001, .context = 32, .layers = 1, .width = 16, .heads = 2};
  const std::vector<Ids> prompts{{1, 2, 3}, {7}};
  const auto texts = [&](int ranks, bool equals) {
    return on_ranks<std::vector<Ids>>(ranks, [&](int rank) {
      manual_seed(uint64_t(ranks == 1 || rank == 0 ? 1 : 99));  // without a seed, rank 0's generator decides
      nn::GPT model(wide);
      // all scores are equal: greedy takes the first id, sampling any
      if (equals) nn::init::zeros(model.tokens_table.weight);
      auto engine = init_inference(model, inference::InferenceConfig{.tensor_parallel = {.tp_size = ranks}}, quiet);
      std::vector<Ids> all;
      const nn::Generation option_sets[] = {
          {.max_new_tokens = 6},
          {.max_new_tokens = 6, .do_sample = true, .seed = 5, .top_k = 10},
          {.max_new_tokens = 6, .do_sample = true, .top_k = 3, .top_p = 0.9},
          {.max_new_tokens = 6, .do_sample = true, .seed = 5, .top_k = 0, .min_p = 0.1},
          {.max_new_tokens = 6, .logprobs = true, .no_repeat_ngram_size = 1}};
      for (const auto& options : option_sets)
        for (const auto& made : engine.generate(prompts, options)) all.push_back(made.tokens);
      return all;
    });
  };
  for (const bool equals : {false, true}) {
    const auto one = texts(1, equals)[0];
    for (const auto& made : texts(3, equals)) CHECK(made == one);
    if (equals) CHECK(one[0] == Ids(6, 0));
  }
  // A NaN among the scores is reported on all ranks, although it is in one rank's shard.
  const std::string wrong = message_of_ranks(2, [&](int) {
    nn::GPT model(wide);
    model.tokens_table.weight.tensor().narrow(0, 700, 1).fill_(NAN);
    auto engine = init_inference(model, tp2, quiet);
    engine.generate(Ids{1, 2});
  });
  CHECK_MESSAGE(contains(wrong, "logits of token 700 are not numbers"), wrong);
}

TEST_CASE("inference: a sequence that one rank ends is ended on all") {
  const auto made = on_ranks<Ids>(2, [](int rank) {
    manual_seed(1);
    nn::GPT model(small);
    auto engine = init_inference(model, tp2, quiet);
    const auto emit = [rank, emitted = 0](size_t, int64_t) mutable { return ++emitted < 3 || rank == 0; };
    return engine.generate(std::vector<Ids>{{1, 2, 3}}, {.max_new_tokens = 8}, emit)[0].tokens;
  });
  CHECK(made == std::vector<Ids>(2, Ids(made[0].begin(), made[0].begin() + 3)));
}

TEST_CASE("inference: calls that differ name the rank") {
  const std::pair<const char*, std::function<void(inference::InferenceEngine&, int)>> rows[] = {
      {"rank 0 has 'prompt 0: 1,2', rank 1 has 'prompt 0: 1,3'",
       [](auto& engine, int rank) {
         engine.generate(Ids{1, 2 + rank});
       }},
      {"rank 1 has 'max_new_tokens 6",
       [](auto& engine, int rank) { engine.generate(Ids{1}, {.max_new_tokens = 5 + rank}); }},
      {"temperature 0.5", [](auto& engine, int rank) { engine.generate(Ids{1}, {.temperature = rank ? 0.5 : 1}); }},
      {"rank 1 has 'tokens", [](auto& engine, int rank) { engine(some_tokens.narrow(0, rank, 1)); }},
  };
  for (const auto& [wanted, call] : rows) {
    const std::string text = message_of_ranks(2, [&](int rank) {
      nn::GPT model(small);
      auto engine = init_inference(model, tp2, quiet);
      const std::string first = message([&] { call(engine, rank); });
      engine.generate(Ids{1, 2}, {.max_new_tokens = 2});  // the engines stay usable
      fail(first);
    });
    CHECK_MESSAGE(contains(text, wanted), text);
  }
  const std::string other = message_of_ranks(2, [&](int rank) {
    nn::GPT model(small);
    init_inference(model, rank ? tp2 : R"({"tp": {"tp_size": 2}, "tm": false})", quiet);
  });
  CHECK_MESSAGE(contains(other, "triangular_masking"), other);

  // Ranks with different models may get different requests. The ranks that share a model are either neighbours, or the
  // process group that the caller gives.
  const auto answers = [&](bool own_group) {
    return on_ranks<Ids>(4, [&](int rank) {
      const int which = own_group ? rank % 2 : rank / 2;
      const auto group = own_group ? dist::world().split(which, rank, "mine") : nullptr;
      manual_seed(1);
      nn::GPT model(small);
      auto engine = init_inference(model, tp2, {.group = group.get(), .log = quiet.log});
      return engine.generate(Ids{1, 2 + which}, {.max_new_tokens = 6}).tokens;
    });
  };
  const auto neighbours = answers(false), grouped = answers(true);
  CHECK(neighbours[0] != neighbours[2]);
  for (const int rank : {0, 1, 2, 3}) {
    CHECK(neighbours[size_t(rank)] == neighbours[size_t(rank / 2 * 2)]);
    CHECK(grouped[size_t(rank)] == neighbours[size_t(rank % 2 * 2)]);
  }
}

TEST_CASE("inference: weights from checkpoints of every kind, and into a folder") {
  const std::string llama = golden + "/llama_mha";
  const auto wanted = nn::from_pretrained(llama);
  const nn::GPT::Options o = wanted->o;
  const NoGrad no_grad;
  const Tensor logits = (*wanted)(some_tokens).tensor();
  const TempDir d;
  data::save_safetensors(d / "ours.safetensors", wanted->state());
  nn::State named;
  checkpoints::Contents contents;
  for (const auto& [name, tensor] : wanted->state()) {
    named.emplace_back("model." + name, tensor);
    contents.pieces.push_back(checkpoints::full("model." + name, tensor));
  }
  const size_t half = named.size() / 2;
  data::save_safetensors(d / "a.safetensors", nn::State(named.begin(), named.begin() + long(half)));
  data::save_safetensors(d / "b.safetensors", nn::State(named.begin() + long(half), named.end()));
  contents.pieces.push_back(checkpoints::full("optimizer.state", ones({3})));
  checkpoints::Saver(d / "run/checkpoints").save("global_step3", contents);
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    for (const Json& checkpoint :
         {Json(llama), Json(llama + "/model.safetensors"), Json(d / "ours.safetensors"),
          Json(Json::Object{{"type", "x"}, {"checkpoints", Json::Array{"a.safetensors", "b.safetensors"}}}),
          Json(d / "run"), Json(d / "run/checkpoints")}) {
      CAPTURE(checkpoint.dump());
      const Json config = Json::Object{{"checkpoint", checkpoint}, {"base_dir", d.str()}, {"mp_size", ranks}};
      for (const Tensor& got : on_ranks<Tensor>(ranks, [&](int) {
             nn::GPT model(o);
             return init_inference(model, config, quiet)(some_tokens).tensor();
           }))
        CHECK(max_relative_difference(got, logits) <= (ranks == 1 ? 0 : 1e-5));
    }
    // Saves a model from memory without sharding; any number of ranks can load it.
    const std::string to = d / str("saved", ranks);
    on_ranks(ranks, [&](int) {
      init_inference(llama, Json(Json::Object{{"save_mp_checkpoint_path", to}, {"mp_size", ranks}}), quiet);
    });
    CHECK(equal((*nn::from_pretrained(to))(some_tokens).tensor(), logits));
  }
  const std::pair<std::string, const char*> rows[] = {
      {"nowhere", "no such file or folder"},
      {d.str(), "expected model.safetensors (Hugging Face's), or checkpoints; it holds neither"},
      {"a.safetensors", "expected a tensor model."},
      {golden + "/llama_main", "expected a config.json with the options of this GPT"}};
  for (const auto& [checkpoint, text] : rows) {
    nn::GPT model(o);
    CHECK_ERROR(init_inference(model, Json(Json::Object{{"checkpoint", checkpoint}, {"base_dir", d.str()}}), quiet),
                text);
  }
  // A damaged checkpoint is rejected.
  const std::string at = d / "run/checkpoints/global_step3";
  for (const auto& file : std::filesystem::directory_iterator(at))
    if (file.path().extension() == ".safetensors") {
      std::string bytes = data::read_file(file.path().string(), 1 << 24);
      bytes.back() ^= 1;
      data::write_atomically(file.path().string(), bytes);
    }
  nn::GPT model(o);
  CHECK_ERROR(init_inference(model, Json(Json::Object{{"checkpoint", d / "run"}}), quiet), "damaged");
}

TEST_CASE("inference: ZeRO's blocks come from host memory and from a file") {
  const std::string llama = golden + "/llama_main";
  const NoGrad no_grad;
  const Ids prompt{1, 2, 3};
  auto plain = init_inference(llama);
  const Tensor logits = plain(some_tokens).tensor();
  const Ids text = plain.generate(prompt, {.max_new_tokens = 8}).tokens;
  const TempDir d;
  for (const std::string device : {"cpu", "nvme"})
    for (const int ranks : {1, 2}) {
      INFO(device, " on ", ranks, " ranks");
      const Json config = Json::Object{
          {"mp_size", ranks},
          {"zero",
           Json::Object{{"stage", 3}, {"offload_param", Json::Object{{"device", device}, {"nvme_path", d.str()}}}}}};
      on_ranks(ranks, [&](int) {
        auto engine = init_inference(llama, config, quiet);
        CHECK(engine.module().blocks[0].mlp.up.weight.tensor().storage()->is_empty());
        CHECK(!engine.module().tokens_table.weight.tensor().storage()->is_empty());
        CHECK(max_relative_difference(engine(some_tokens).tensor(), logits) <= (ranks == 1 ? 0 : 1e-5));
        CHECK(engine.generate(prompt, {.max_new_tokens = 8}).tokens == text);
      });
      CHECK(std::filesystem::is_empty(d.str()));
    }
}

TEST_CASE("inference: experts over ranks") {
  const std::vector<Ids> prompts{{1, 2, 3}, {9, 9}};
  const auto make = [](bool residual = false) {
    manual_seed(3);
    auto model = std::make_unique<nn::GPT>(small);
    moe::add_experts(*model, {.width = 0, .experts = 4, .top_k = 2, .use_residual = residual}, 1);
    return model;
  };
  const auto texts = [&](int tp, int ep) {
    return on_ranks<std::vector<Ids>>(tp * ep, [&](int) {
      const auto model = make();
      auto engine = init_inference(*model,
                                   Json(Json::Object{{"tp", Json::Object{{"tp_size", tp}}},
                                                     {"moe", Json::Object{{"ep_size", ep}, {"num_experts", 4}}}}),
                                   quiet);
      CHECK(int(moe::layers_of(*model)[0]->experts.size()) == 4 / ep);
      std::vector<Ids> all;
      for (const auto& made : engine.generate(prompts, {.max_new_tokens = 8})) all.push_back(made.tokens);
      return all;
    });
  };
  const auto one = texts(1, 1)[0];
  for (const auto& [tp, ep] : {std::pair(1, 2), std::pair(1, 4), std::pair(2, 1), std::pair(2, 2)})
    for (const auto& made : texts(tp, ep)) CHECK(made == one);
  const auto refused = [&](const std::string& config, bool residual = false) {
    const auto model = make(residual);
    return message([&] { init_inference(*model, config, quiet); });
  };
  CHECK(contains(refused(R"({"moe": {"num_experts": [8]}})"), "expected the model's 4 experts in layer 0"));
  CHECK(contains(refused(R"({"moe": {"type": "standard"}})", true), "the model's experts are residual"));
  CHECK(contains(message_of_ranks(3,
                                  [&](int) {
                                    const auto model = make();
                                    init_inference(*model, R"({"ep_size": 3})", quiet);
                                  }),
                 "expected a divisor of 4, the number of experts, got 3"));
  // Written by two ranks, read by one.
  const TempDir d;
  on_ranks(2, [&](int) {
    const auto model = make();
    init_inference(*model, Json(Json::Object{{"ep_size", 2}, {"save_mp_checkpoint_path", d.str()}}), quiet);
  });
  const auto model = make();
  for (const Variable& p : model->parameters()) p.tensor().fill_(0);
  auto engine = init_inference(*model, Json(Json::Object{{"checkpoint", d.str()}}), quiet);
  CHECK(engine.generate(prompts, {.max_new_tokens = 8})[0].tokens == one[0]);
}

TEST_CASE("inference: dtypes, times, losses, and what an engine refuses") {
  manual_seed(1);
  const auto with = [](const std::string& config) {
    auto model = std::make_shared<nn::GPT>(small);
    auto engine = std::make_shared<inference::InferenceEngine>(init_inference(*model, config, quiet));
    return std::pair(model, engine);
  };
  for (const auto& [word, dtype] : {std::pair("fp32", f32), std::pair("half", f16), std::pair("bfloat", bf16)}) {
    const auto [model, engine] = with(str("{\"dtype\": \"", word, "\"}"));
    CHECK(model->head.weight.dtype() == dtype);
    CHECK((*engine)(some_tokens).dtype() == dtype);
    CHECK(!model->is_training());
  }
  const auto [model, engine] = with(R"({"max_out_tokens": 20, "min_out_tokens": 8})");
  CHECK(std::abs(engine->loss(some_tokens, some_tokens).item() - model->loss(some_tokens, some_tokens).item()) < 1e-9);
  for (const Variable& out : {(*engine)(some_tokens), engine->loss(some_tokens, some_tokens)})
    CHECK_ERROR(sum(out).backward(), "made for inference; use engine::initialize to train");
  CHECK_ERROR(engine->model_times(), "call profile_model_time() before the model runs");
  engine->profile_model_time();
  (*engine)(some_tokens);
  engine->generate(Ids{1, 2, 3}, {.max_new_tokens = 4});
  const auto times = engine->model_times();
  CHECK(times.size() == 5);
  for (const double seconds : times) CHECK(seconds > 0);
  CHECK(engine->model_times().empty());
  CHECK(engine->generate(Ids{1, 2, 3}, {.max_new_tokens = 17}).tokens.size() == 17);
  CHECK_ERROR(engine->generate(Ids{1, 2, 3}, {.max_new_tokens = 18}),
              "prompt 0 has 3 tokens, and max_new_tokens is 18: expected at most max_out_tokens 20 together");
  engine->destroy();
  CHECK_ERROR(engine->generate(Ids{1}), "generate() after destroy()");
  (*model)(some_tokens);  // destroy() has removed the hooks

  const auto [both_ways, encoder] = with(R"({"triangular_masking": false})");
  Tensor other = some_tokens.clone();
  other.narrow(1, 4, 1).fill_(7);  // without a causal mask, the first token attends to the last one
  CHECK(max_relative_difference((*encoder)(some_tokens).tensor().narrow(1, 0, 1),
                                (*encoder)(other).tensor().narrow(1, 0, 1)) > 1e-6);
  CHECK_ERROR(encoder->generate(Ids{1}), "triangular_masking is false");

  const std::pair<const char*, const char*> rows[] = {
      {R"({"max_out_tokens": 33})", "expected at most the model's context 32, got 33"},
      {R"({"min_out_tokens": 33})", "expected at most the model's context 32, got 33"},
      {R"({"tp": {"tp_size": 2}})", "start the program with lockstep run -n 2"},
      {R"({"moe": {"ep_size": 2}})", "needs a multiple of 2 ranks"},
      {R"({"moe": {"num_experts": 8}})", "moe.num_experts: only for models with experts, this"},
      {R"({"moe": {"type": "residual"}})", "moe.type: only for models with experts, this"},
      {R"({"moe": {"enabled": true, "num_experts": [1]}})", "(no error)"},
      {R"({"injection_policy": {"TransformerBlok": "mlp.down"}})",
       "no module is a 'TransformerBlok'; did you mean TransformerBlock?"},
      {R"({"injection_policy": {"TransformerBlock": ["o_proj"]}})",
       "no layer ends with 'o_proj'; name one of blocks.0.attention.out_proj, blocks.0.mlp.down"},
      {R"({"injection_policy": {"TransformerBlock": ["mlp.up"]}})",
       "blocks.0.mlp.up are not summed over ranks in this model"},
      {R"({"injection_policy": {"TransformerBlock": ["attention.out_proj", "mlp.down"]}})", "(no error)"},
      {R"({"enable_cuda_graph": true, "keep_module_on_host": true, "tp": {"enabled": false, "tp_size": 4}})",
       "(no error)"},
  };
  for (const auto& [config, text] : rows) CHECK_ERROR(with(config), text);
}

TEST_CASE("inference: weights in 8 and 4 bits, the same codes on every rank") {
  const NoGrad no_grad;
  const Ids prompt{1, 2, 3, 4, 5};
  const auto text_of = [&](inference::InferenceEngine engine) {
    return engine.generate(prompt, {.max_new_tokens = 8}).tokens;
  };
  const auto config_of = [](int ranks, const std::string& weight, int groups, const std::string& more = "") {
    return str(R"({"dtype": "int8", "mp_size": )", ranks, R"(, "quant": {"weight": {)", weight, R"("q_groups": )",
               groups, "}}", more, "}");
  };
  const auto texts = [&](const std::string& from, int ranks, const std::string& weight, int groups = 1) {
    return on_ranks<Ids>(ranks, [&](int) {
      auto engine = init_inference(from, config_of(ranks, weight, groups), quiet);
      CHECK(nn::is_quantized(engine.module()));
      return text_of(std::move(engine));
    });
  };
  for (const std::string name : llamas) {
    CAPTURE(name);
    const Ids one = texts(golden + "/llama_" + name, 1, "")[0];
    for (const int ranks : {2, 4})
      for (const Ids& made : texts(golden + "/llama_" + name, ranks, "")) CHECK(made == one);
  }
  const std::string llama = golden + "/llama_yarn";  // this model's widths are multiples of 2 x 32
  const struct {
    const char* weight;
    int groups;
    QuantFormat format;
  } rows[] = {{"", 1, QuantFormat::row8},
              {"", 64, QuantFormat::row8},
              {"", 128, QuantFormat::group8},
              {"\"num_bits\": 4, ", 1, QuantFormat::group4}};
  for (const auto& row : rows) {
    CAPTURE(row.groups);
    const Ids one = texts(llama, 1, row.weight, row.groups)[0];
    for (const Ids& made : texts(llama, 2, row.weight, row.groups)) CHECK(made == one);
    auto engine = init_inference(llama, config_of(1, row.weight, row.groups), quiet);
    CHECK(nn::quantized_weight(engine.module().blocks[0].mlp.up.attached)->format == row.format);
    CHECK(!engine.module().head.attached.store);
    // Saving a quantized model from memory writes the same codes with any number of ranks.
    const TempDir d;
    const std::string save = str(R"(, "save_mp_checkpoint_path": ")", d / "codes", '"');
    for (const int ranks : {1, 2}) {
      on_ranks(ranks, [&](int) { init_inference(llama, config_of(ranks, row.weight, row.groups, save), quiet); });
      CHECK(text_of(init_inference(d / "codes", {}, quiet)) == one);
      for (const Ids& made : texts(d / "codes", 2, row.weight, row.groups)) CHECK(made == one);
      nn::GPT model(nn::pretrained_options(llama));
      const Json codes = Json::Object{{"checkpoint", d / "codes/quantized.safetensors"}};
      CHECK(text_of(init_inference(model, codes, quiet)) == one);
    }
  }
  auto apart = init_inference(
      llama, R"({"dtype": "int8", "quant": {"qkv": {"enabled": false}, "activation": {"enabled": true}}})", quiet);
  CHECK(!apart.module().blocks[0].attention.in_proj.attached.store);
  CHECK(nn::quantized_weight(apart.module().blocks[0].attention.out_proj.attached)->matmul_args.dynamic);
  const std::pair<const char*, const char*> refused[] = {
      {R"({"dtype": "int8", "quant": {"weight": {"q_groups": 7}}})",
       "7 does not divide the 12288 elements of blocks.0.attention.in_proj.weight"},
      {R"({"dtype": "int8", "quant": {"weight": {"q_groups": 1024}}})",
       "expected at most 128 (the smallest weight has so many groups of 32 numbers)"},
      {R"({"dtype": "int8", "quant": {"weight": {"q_groups": 128}, "activation": {"enabled": true}}})",
       "expected quant.weight.q_groups of at most 64 with it"},
  };
  for (const auto& [config, text] : refused) CHECK_ERROR(init_inference(llama, config, quiet), text);
}
