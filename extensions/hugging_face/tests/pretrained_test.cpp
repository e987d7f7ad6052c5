// Hugging Face's folders: Llamas against Transformers' values (golden/models), folders that are written and
// read again (whole, in shards, by ranks), and damaged or foreign folders.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "data/json.h"
#include "data/safetensors.h"
#include "extensions/generation/generate.h"
#include "extensions/hugging_face/config.h"
#include "extensions/hugging_face/names.h"
#include "extensions/hugging_face/pretrained.h"
#include "extensions/hugging_face/tests/golden_folders.h"
#include "nn/init.h"
#include "parallel/tensor_parallel/apply.h"
#include "tests/apart.h"
#include "tests/devices.h"
#include "tests/golden_folder.h"
#include "tests/messages.h"
#include "tests/ranks.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace testing;
using data::Json;
using data::SafeTensors;

namespace {

Tensor ids_of(std::vector<int64_t> ids) {
  const auto count = int64_t(ids.size());
  return Tensor::from(ids, {1, count});
}

}  // namespace

TEST_CASE("pretrained: logits, losses, gradients and texts of Llamas match Transformers") {
  using Row = std::pair<std::string, std::string>;  // a file of values and the name of the folder beside it
  for (const auto& [values, name] :
       {Row{"llama", "main"}, Row{"llama", "mha"}, Row{"llama", "wide"}, Row{"llama", "llama3"}, Row{"llama", "linear"},
        Row{"llama", "yarn"}, Row{"window", "mistral"}, Row{"window", "qwen2"}}) {
    INFO(name);
    const auto file = SafeTensors::open(golden + "/" + values + ".safetensors");
    const std::string folder = golden + "/" + values + "_" + name;
    const auto model = nn::from_pretrained(folder);
    const auto wanted = [&](const std::string& what) { return file.tensor(name + "/" + what).to(default_device()); };
    model->to(default_device());
    const Tensor ids = wanted("input_ids");
    const Variable logits = (*model)(ids);
    // The golden values were computed in f64. In f32 Transformers itself differs by 1.1e-5.
    CHECK(max_relative_difference(logits.tensor(), wanted("logits")) <= 3e-5);
    CHECK(max_relative_difference((*nn::from_pretrained(folder, {.dtype = f64}))(ids.to(cpu)).tensor(),
                                  wanted("logits")) <= 1e-5);
    const int64_t tokens = ids.size(1) - 1;  // position t predicts token t + 1
    const Variable loss = cross_entropy(logits.narrow(1, 0, tokens).reshape({-1, logits.size(2)}),
                                        ids.narrow(1, 1, tokens).reshape({-1}));
    CHECK(max_relative_difference(loss.tensor(), wanted("loss")) <= 1e-5);
    loss.backward();
    int compared = 0;
    for (const auto& p : model->named_parameters()) {
      for (const auto& piece : nn::pretrained_pieces(model->o, p.name)) {
        const Tensor grad = piece.rows < 0 ? p.variable.grad() : p.variable.grad().narrow(0, piece.row, piece.rows);
        CHECK_MESSAGE(max_relative_difference(grad, wanted("grad/" + piece.name)) <= 2e-5, piece.name);
        ++compared;
      }
    }
    for (const auto& entry : file.entries()) compared -= entry.name.starts_with(name + "/grad/");
    CHECK(compared == 0);  // no gradient is left over

    const std::pair<const char*, nn::Generation> rows[] = {
        {"greedy", {}}, {"greedy_rep1.3", {.repetition_penalty = 1.3}}, {"beam4", {.num_beams = 4}}};
    for (auto [golden, settings] : rows) {
      CAPTURE(golden);
      if (values != "llama" && settings.num_beams + settings.repetition_penalty > 2) continue;
      const std::vector<int64_t> text = wanted(golden).to_vector<int64_t>();
      const auto answer = text.begin() + 5;  // after the prompt
      settings.max_new_tokens = text.end() - answer;
      CHECK(nn::generate(*model, std::vector<int64_t>(text.begin(), answer), settings).tokens ==
            std::vector<int64_t>(answer, text.end()));
    }
    if (values != "llama") continue;
    const std::vector<double> frequencies = nn::rope_frequencies(*model->o.rope, model->o.head_size, model->o.context),
                              golden_frequencies = wanted("inv_freq").to_vector<double>();
    REQUIRE(frequencies.size() == golden_frequencies.size());
    for (size_t i = 0; i < frequencies.size(); ++i) CHECK(std::abs(frequencies[i] / golden_frequencies[i] - 1) <= 1e-6);
    CHECK(std::abs(nn::rope_attention_factor(*model->o.rope) - wanted("attention_scaling").item()) <= 1e-6);
  }
}

TEST_CASE("rope: frequencies of every scaling") {
  using Scaling = nn::Rope::Scaling;
  struct Row {
    nn::Rope rope;
    int64_t head_size, context;
    std::vector<double> wanted;
  };
  const nn::Rope dynamic2{.scaling = Scaling::dynamic, .factor = 2, .original_context = 16},
      dynamic4{.scaling = Scaling::dynamic, .factor = 4, .original_context = 16};
  const Row rows[] = {
      {dynamic2, 8, 16, {1, 0.1, 0.01, 0.001}},
      {dynamic2, 8, 24, {1, 0.079370052598409971, 0.0062996052494743663, 0.0005}},
      {dynamic4, 8, 40, {1, 0.052275795857471025, 0.0027327588325319844, 0.00014285714285714287}},
      {{.scaling = Scaling::yarn, .factor = 4, .original_context = 64},
       16,
       256,
       {1, 0.23717082451262847, 0.05, 0.0079056941504209478, 0.0025, 0.00079056941504209474, 0.00025,
        7.9056941504209485e-05}},
      {{.scaling = Scaling::yarn, .factor = 8, .original_context = 2048, .truncate = false},
       16,
       16384,
       {1, 0.31622776601683794, 0.1, 0.022578094941745081, 0.0042331334413176734, 0.00041945916862360614, 0.000125,
        3.9528470752104742e-05}},
      {{.base = 500000,
        .scaling = Scaling::yarn,
        .factor = 4,
        .beta_fast = 16,
        .beta_slow = 2,
        .original_context = 4096},
       16,
       16384,
       {1, 0.19392274474868576, 0.037606030930863933, 0.0045579154607606927, 0.00035355339059327376,
        6.8562043919051825e-05, 1.3295739742362472e-05, 2.5783463443031149e-06}},
      {{.base = 500000, .scaling = Scaling::llama3, .factor = 8, .original_context = 8192},
       16,
       131072,
       {1, 0.19392274474868576, 0.037606030930863933, 0.0072926647372171085, 0.00052484616099295468,
        3.4281021959525912e-05, 6.6478698711812362e-06, 1.2891731721515574e-06}},
      {{.scaling = Scaling::llama3, .factor = 32, .original_context = 64},
       8,
       2048,
       {1, 0.0037253549056583705, 0.0003125, 3.125e-05}},
      {{.base = 1e6, .scaling = Scaling::linear, .factor = 2.5},
       8,
       64,
       {0.4, 0.012649110640673516, 0.0004, 1.2649110640673518e-05}},
      {{.partial = 0.5}, 16, 64, {1, 0.1, 0.01, 0.001}},
  };
  for (const Row& row : rows) {
    INFO(int(row.rope.scaling) << ", " << row.context);
    const auto found = nn::rope_frequencies(row.rope, row.head_size, row.context);
    REQUIRE(found.size() == row.wanted.size());
    for (size_t i = 0; i < found.size(); ++i) CHECK(std::abs(found[i] / row.wanted[i] - 1) <= 1e-12);
  }
  CHECK(nn::rope_attention_factor({.scaling = Scaling::yarn, .factor = 4}) == doctest::Approx(1.1386294361119891));
  CHECK(nn::rope_attention_factor({.scaling = Scaling::yarn, .factor = 4, .attention_factor = 0.5}) == 0.5);
  CHECK(nn::rope_attention_factor({.scaling = Scaling::linear, .factor = 4}) == 1);

  // All layers share one table. Its rows do not depend on earlier requests; with dynamic scaling they depend on the
  // length only.
  nn::RopeTable table({.scaling = Scaling::dynamic, .factor = 2, .partial = 0.5}, 16, 16), fresh(table.rope(), 16, 16);
  const auto cosine = [](nn::RopeTable& of, int64_t first, int64_t tokens) {
    return of.at(first, tokens, f32, cpu).cosine;
  };
  const Tensor short_one = cosine(table, 0, 9), longer = cosine(table, 20, 4);
  CHECK(equal(cosine(fresh, 20, 4), longer));
  CHECK(equal(table.at(Tensor::from(std::vector<int64_t>{20, 22, 23}, {3}), 24, f32, cpu).cosine,
              cat({longer.narrow(0, 0, 1), longer.narrow(0, 2, 2)}, 0)));
  CHECK(equal(cosine(table, 3, 6), short_one.narrow(0, 3, 6)));
  CHECK(std::abs(longer.to_vector<double>()[1] - std::cos(20 * 0.079370052598409971)) <= 1e-7);
  const nn::RopeTable::Angles angles = table.at(0, 4, f32, cpu);
  const Tensor x = randn({2, 4, 3 * 16}),  // partial rotation leaves the second half of each head unchanged
      turned = rotary_packed(x, 3, 3, angles.cosine, angles.sine).view({2, 4, 3, 16}), heads = x.view({2, 4, 3, 16});
  CHECK(equal(turned.narrow(-1, 8, 8), heads.narrow(-1, 8, 8)));
  CHECK(!equal(turned.narrow(-1, 0, 8), heads.narrow(-1, 0, 8)));
}

TEST_CASE("pretrained: saving and loading give the same bits, whole and in shards") {
  using Scaling = nn::Rope::Scaling;
  const nn::GPT::Options llama{.vocab = 30,
                               .context = 16,
                               .layers = 2,
                               .width = 24,
                               .heads = 4,
                               .inner = 20,
                               .kv_heads = 2,
                               .head_size = 8,
                               .norm_eps = 1e-6,
                               .norm = nn::Norm::rms,
                               .feed_forward = nn::FeedForward::swiglu,
                               .rope = nn::Rope{.base = 5000},
                               .tied = false,
                               .attention_bias = false,
                               .attention_out_bias = false,
                               .mlp_bias = false};
  const auto with = [&](const std::function<void(nn::GPT::Options&)>& change) {
    nn::GPT::Options o = llama;
    change(o);
    return o;
  };
  const nn::GPT::Options gpt2{.vocab = 30, .context = 16, .layers = 2, .width = 24, .heads = 4};
  nn::GPT::Options odd_gpt2 = gpt2;
  odd_gpt2.inner = 20, odd_gpt2.gelu = Gelu::erf, odd_gpt2.tied = false;
  const std::pair<const char*, nn::GPT::Options> rows[] = {
      {"llama", llama},
      {"llama", with([](auto& o) { o.tied = o.attention_bias = o.attention_out_bias = o.mlp_bias = true; })},
      {"qwen2", with([](auto& o) { o.attention_bias = true; })},
      {"llama", with([](auto& o) {
         o.rope = nn::Rope{.scaling = Scaling::yarn, .factor = 4, .attention_factor = 1.25, .original_context = 8};
       })},
      {"llama",
       with([](auto& o) { o.rope = nn::Rope{.scaling = Scaling::dynamic, .factor = 2, .original_context = 8}; })},
      {"llama",
       with([](auto& o) { o.rope = nn::Rope{.scaling = Scaling::llama3, .factor = 8, .original_context = 8}; })},
      {"llama", with([](auto& o) { o.rope = nn::Rope{.scaling = Scaling::linear, .factor = 2}; })},
      {"mistral", with([](auto& o) { o.window = 2; })},
      {"mistral", with([](auto& o) { o.window = 2, o.window_from = 1; })},
      {"qwen2", with([](auto& o) { o.attention_bias = true, o.window = 3, o.window_from = 1; })},
      {"gpt2", gpt2},
      {"gpt2", odd_gpt2},
  };
  manual_seed(7);
  for (const auto& [type, options] : rows) {
    nn::GPT model(options);
    for (const Variable& p : model.parameters()) Tensor(p.tensor()).copy_(randn(p.shape()));
    for (const DType dtype : {f32, bf16}) {
      model.to(dtype);
      const TempDir at;
      for (const int64_t limit : {int64_t(3000), int64_t(1) << 40}) {  // shards, then a single file that replaces them
        nn::save_pretrained(model, at.str(), {.max_shard_size = limit});
        CHECK(std::filesystem::exists(at / "model.safetensors.index.json") == (limit == 3000));
        CHECK(std::filesystem::exists(at / "model.safetensors") == (limit > 3000));
        CHECK((limit == 3000 || at.files() == 2));
        const auto back = nn::from_pretrained(at.str());
        CHECK(same(model, *back));
        CHECK(back->o.rope == options.rope);
        CHECK(back->o.context == options.context);
        CHECK(back->o.window == options.window);
        CHECK(back->o.window_from == options.window_from);
        CHECK(data::read_json(at / "config.json").at("model_type").as_string() == type);
        nn::GPT other(options);
        other.to(dtype);
        nn::load_pretrained(other, at.str());
        CHECK(same(model, other));
        const NoGrad no_grad;
        const Tensor ids = ids_of({1, 5, 29, 3});
        CHECK(equal(model(ids).tensor(), (*back)(ids).tensor()));
        CHECK(nn::from_pretrained(at.str(), {.dtype = f64})->parameters()[0].dtype() == f64);
      }
    }
  }
  const TempDir at;
  nn::GPT other(with([](auto& o) { o.rope->base = 4000; }));
  for (nn::GPT::Options o :
       {with([](auto& x) { x.norm = nn::Norm::layer; }), with([](auto& x) { x.rope->partial = 0.5; }),
        with([](auto& x) { x.heads = x.kv_heads = 5; }), with([](auto& x) { x.window = 2, x.mlp_bias = true; }),
        nn::GPT::Options{.vocab = 30, .context = 16, .layers = 1, .width = 24, .window = 3}}) {
    nn::GPT mixed(o);
    CHECK_ERROR(nn::save_pretrained(mixed, at.str()), "Transformers has no such model");
  }
  CHECK(at.files() == 0);
  nn::GPT model(llama);
  nn::save_pretrained(model, at.str());
  CHECK_ERROR(nn::load_pretrained(other, at.str()), "with the options of this GPT of vocab 30");
  CHECK_ERROR(nn::gpt_options("llama:2x36x4"), "expected an even WIDTH / HEADS, got 9");
  const nn::GPT::Options named = nn::gpt_options("llama:32x4096x32");
  CHECK((named.inner == 11008 && named.norm == nn::Norm::rms && named.rope && !named.tied && !named.bias));
}

TEST_CASE("pretrained: which blocks have a window") {
  // changes to Qwen 2's config, and the expected window and first block with a window
  using Row = std::pair<std::function<void(Json&)>, std::pair<int64_t, int64_t>>;
  const Row rows[] = {
      {[](Json& c) { c["use_sliding_window"] = false; }, {0, 0}},
      {[](Json& c) { c["sliding_window"] = Json(); }, {0, 0}},
      {[](Json& c) { c["sliding_window"] = 64; }, {0, 0}},  // no shorter than the context
      {[](Json& c) { c["layer_types"] = Json(), c["max_window_layers"] = 0; }, {7, 0}},
      {[](Json& c) { c["layer_types"] = Json(), c["max_window_layers"] = 2; }, {7, 2}},
      {[](Json& c) { c["layer_types"] = Json(), c["max_window_layers"] = 3; }, {0, 0}},
      {[](Json& c) { c["layer_types"] = Json(), c["max_window_layers"] = Json(); }, {0, 0}},  // the default is 28
      // layer_types takes precedence
      {[](Json& c) { c["max_window_layers"] = 2; }, {7, 1}},
  };
  for (const auto& [change, wanted] : rows) {
    Json config = data::read_json(golden + "/window_qwen2/config.json");
    change(config);
    CAPTURE(config.dump());
    const nn::GPT::Options o = nn::options_from_config(config, "config.json");
    CHECK(o.window == wanted.first);
    CHECK(o.window_from == wanted.second);
  }
  Json config = data::read_json(golden + "/window_mistral/config.json");
  config["max_position_embeddings"] = 8192, config["sliding_window"] = 4095;
  CHECK(nn::options_from_config(config, "config.json").window == 4095);
  const nn::GPT model({.vocab = 8, .context = 8, .layers = 3, .width = 8, .heads = 2, .window = 3, .window_from = 1});
  for (size_t i = 0; i < 3; ++i) CHECK(model.blocks.items[i]->attention.o.window == (i == 0 ? 0 : 3));
}

TEST_CASE("pretrained: files by other versions load, too") {
  const auto wanted = nn::from_pretrained(golden + "/llama_main");
  const Json ends = Json::Array{Json(2), Json(7)};
  const std::pair<const char*, std::function<void(Folder&)>> rows[] = {
      {"bare names",
       [](Folder& f) {
         for (auto& [name, tensor] : f.tensors)
           if (name.starts_with("model.")) name = name.substr(6);
       }},
      {"frequencies", [](Folder& f) { f["model.layers.0.self_attn.rotary_emb.inv_freq"] = zeros({8}); }},
      {"version 4", [](Folder& f) { f.drop("rope_parameters"), f.config["rope_theta"] = 10000; }},
      {"versions 4 and 5", [](Folder& f) { f.config["rope_theta"] = 10000.0, f.config["rope_scaling"] = Json(); }},
      {"null", [](Folder& f) { f.config["head_dim"] = Json(), f.config["quantization_config"] = Json(); }},
      {"no model of its own",
       [](Folder& f) { f.config["model_type"] = "mistral", f.config["sliding_window"] = Json(); }},
      {"a wide window", [](Folder& f) { f.config["model_type"] = "mistral", f.config["sliding_window"] = 96; }},
      {"several ends", [&](Folder& f) { f.config["eos_token_id"] = ends; }},
  };
  for (const auto& [what, change] : rows) {
    INFO(what);
    Folder folder("llama_main");
    change(folder);
    CHECK(same(*wanted, *nn::from_pretrained(folder.write())));
    const TempDir other;
    std::filesystem::remove(folder.at / "model.safetensors");
    CHECK(same(*wanted, *nn::from_pretrained(folder.write_shards())));
  }
  Folder folder("llama_main");
  folder.config["eos_token_id"] = ends;
  CHECK(nn::eos_tokens(folder.write()) == std::vector<int64_t>{2, 7});
  folder.at.write("generation_config.json", R"({"eos_token_id": 5})");
  CHECK(nn::eos_tokens(folder.at.str()) == std::vector<int64_t>{5});

  Folder old("llama_yarn");  // uses rope_scaling, whose old name for rope_type is type
  old.drop("rope_parameters");
  old.config["rope_theta"] = 10000;
  old.config["rope_scaling"] =
      Json::Object{{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
  CHECK(same(*nn::from_pretrained(golden + "/llama_yarn"), *nn::from_pretrained(old.write())));
  CHECK(nn::pretrained_options(old.at.str()).rope == nn::pretrained_options(golden + "/llama_yarn").rope);
  old.config["rope_scaling"]["mscale"] = 1.0, old.config["rope_scaling"]["mscale_all_dim"] = 0.5;
  CHECK(nn::rope_attention_factor(*nn::pretrained_options((old.write_config(), old.at.str())).rope) ==
        doctest::Approx((0.1 * std::log(4.) + 1) / (0.05 * std::log(4.) + 1)));

  Folder tied("llama_mha");  // stores the tied table twice
  tied["lm_head.weight"] = tied["model.embed_tokens.weight"].clone();
  CHECK(same(*nn::from_pretrained(golden + "/llama_mha"), *nn::from_pretrained(tied.write())));
}

TEST_CASE("pretrained: folders that are damaged or of something else are refused in one line") {
  const auto set = [](const char* key, Json value) {
    return [key, value](Folder& f) { f.config[key] = value, f.write(); };
  };
  const auto rope = [](Json::Object parameters) {
    return [parameters](Folder& f) { f.config["rope_parameters"] = parameters, f.write(); };
  };
  const auto shards = [](const std::function<void(Folder&, Json&)>& change) {
    return [change](Folder& f) { f.write_shards([&](Json& map) { change(f, map); }); };
  };
  const auto tensor = [](const std::string& name, const Tensor& value) {
    return [=](Folder& f) { f[name] = value, f.write(); };
  };
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  const std::pair<std::function<void(Folder&)>, std::string> rows[] = {
      {set("model_type", "phi3"), "expected model_type 'gpt2', 'llama', 'mistral' or 'qwen2', got 'phi3'"},
      {set("hidden_act", "gelu"), "hidden_act: expected 'silu', got 'gelu'"},
      {set("num_key_value_heads", 3), "num_key_value_heads: expected a number that divides the 4"},
      {set("num_attention_heads", "four"), "num_attention_heads"},
      {set("hidden_size", 0), "hidden_size: expected a number from 1 to"},
      {set("vocab_size", int64_t(1) << 40), "vocab_size: expected a number from 1 to"},
      {set("num_hidden_layers", 90'000), "config.json: the weights beside it ("},
      {set("rms_norm_eps", -1), "rms_norm_eps: expected a number >= 0, got -1"},
      {set("hidden_size", 66), "num_attention_heads: expected a number that divides hidden_size 66, got 4"},
      {set("head_dim", 15), "expected an even number of features to rotate, got 15"},
      {set("quantization_config", Json::Object{{"quant_method", "gptq"}}), "quantised weights are not supported"},
      {set("eos_token_id", "two"), "eos_token_id"},
      {set("rope_theta", 5000), "rope_parameters: expected the rope_theta beside it, 5000, got 10000"},
      {set("rope_scaling", Json::Object{{"rope_type", "linear"}, {"factor", 2}}),
       "rope_parameters and rope_scaling are both given, and differ"},
      {rope({{"rope_type", "longrope"}, {"rope_theta", 10000}}), "rope_type 'longrope' is not supported"},
      {rope({{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 2}}), "expected rope_type and type to agree"},
      {rope({{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}), "partial_rotary_factor 0.5 is not supported"},
      {rope({{"rope_type", "linear"}}), "expected a factor for rope_type 'linear'"},
      {rope({{"rope_type", "dynamic"}, {"factor", 0.5}}), "factor: expected a number >= 1, got 0.5"},
      {rope({{"rope_type", "llama3"}, {"factor", 8}, {"high_freq_factor", 4}}), "expected a low_freq_factor"},
      {rope({{"full_attention", Json::Object{}}}), "full_attention: positions per kind of layer are not supported"},
      {[](Folder& f) { f.config["model_type"] = "mistral", f.config["sliding_window"] = 0, f.write(); },
       "sliding_window: expected a number from 1 to"},
      {[](Folder& f) {
         f.config["model_type"] = "qwen2", f.config["sliding_window"] = 32, f.config["use_sliding_window"] = true;
         f.config["layer_types"] = Json::Array{Json("sliding_attention"), Json("full_attention")};
         f.write();
       },
       "layer_types: expected 'full_attention' for the first of 2 layers and 'sliding_attention' for the rest"},
      {set("attention_bias", true), "missing tensors: model.layers.0.self_attn.q_proj.bias, "},
      {set("num_hidden_layers", 3), "missing tensors: model.layers.2."},
      {set("num_hidden_layers", 1), "unexpected tensors for its config.json: model.layers.1.input_layernorm.weight, "},
      {set("vocab_size", 212), "expected model.embed_tokens.weight of shape (212, 64), got (211, 64)"},
      {set("tie_word_embeddings", true), "tie_word_embeddings is true, and lm_head.weight differs from"},
      {tensor(q, zeros({32, 64})), "expected " + q + " of shape (64, 64), got (32, 64)"},
      {tensor(q, zeros({64, 64}, {.dtype = i64})), q + " of a floating dtype, got i64"},
      {tensor("score.weight", zeros({2, 64})), "unexpected tensors for its config.json: score.weight"},
      {tensor("norm.weight", zeros({64})), "occurs twice"},
      {[](Folder& f) { f.write(), f.at.write("config.json", "[]"); }, "config.json: expected an object, got a list"},
      {[](Folder& f) { f.write(), f.at.write("config.json", R"({"model_type": "llama")"); }, "config.json:1:"},
      {[](Folder& f) { f.write(), std::filesystem::remove(f.at / "config.json"); }, "config.json"},
      {[](Folder& f) { f.write_config(); }, "expected model.safetensors or model.safetensors.index.json"},
      {[](Folder& f) { f.write_config(), f.at.write("pytorch_model.bin", ""); }, "pytorch_model.bin is a pickle"},
      {[](Folder& f) { f.write(), std::filesystem::resize_file(f.at / "model.safetensors", 100'000); },
       "is the file truncated?"},
      {[](Folder& f) { f.write(), f.at.write("model.safetensors", "version https://git-lfs"); }, "safetensors"},
      {shards([](Folder&, Json& map) { map["lm_head.weight"] = "../b.safetensors"; }),
       "expected names of .safetensors files in this folder, got '../b.safetensors' for lm_head.weight"},
      {shards([](Folder&, Json& map) { map["lm_head.weight"] = "/etc/passwd"; }), "got '/etc/passwd'"},
      {shards([](Folder&, Json& map) { map["lm_head.weight"] = "c.safetensors"; }),
       "expected the shard c.safetensors beside it, there is none"},
      {shards([](Folder&, Json& map) { map["model.norm.weight"] = "a.safetensors"; }),
       "expected 'model.norm.weight' in a.safetensors, it is in another file"},
      {shards([](Folder&, Json& map) { map["more.weight"] = "a.safetensors"; }), "it is not there"},
      {shards([](Folder&, Json& map) { map = Json(Json::Object{}); }), "expected a weight_map with tensors"},
      {shards([](Folder&, Json& map) { map = Json(3); }), "weight_map"},
  };
  for (const auto& [change, error] : rows) {
    Folder folder("llama_main");
    change(folder);
    const std::string said = message([&] { nn::from_pretrained(folder.at.str()); });
    CHECK_MESSAGE(contains(said, error), said);
    CHECK_MESSAGE(contains(said, folder.at.str()), said);
    CHECK_MESSAGE(!contains(said, "\n"), said);
  }
}

TEST_CASE("pretrained: a model that is built empty reads what a rank holds, and no more at a time") {
  const std::string folder = golden + "/llama_main";
  const auto full = nn::from_pretrained(folder);
  const Tensor ids = ids_of({1, 50, 200, 7, 9});
  const auto logits = [&](nn::GPT& of) {
    const NoGrad no_grad;
    return of(ids).tensor();
  };
  const Tensor wanted = logits(*full);
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&](int) {
      std::unique_ptr<nn::GPT> model;
      {
        const nn::BuildEmpty scope;
        model = nn::from_pretrained(folder);
      }
      for (const Variable& p : model->parameters()) CHECK(nn::is_built_empty(p));
      std::optional<tensor_parallel::TensorParallel> cut;
      if (ranks > 1) cut.emplace(tensor_parallel::apply(*model, dist::world()));
      nn::fill(*model);
      const auto all = full->named_parameters(), own = model->named_parameters();
      for (size_t i = 0; i < all.size(); ++i) {
        const auto* const shard = cut ? cut->find(own[i].variable) : nullptr;
        const Tensor &from = all[i].variable.tensor(), here = own[i].variable.tensor();
        CHECK_MESSAGE(
            equal(here, shard ? tensor_parallel::shard_of(from, shard->cut, ranks, dist::world().rank()) : from),
            all[i].name);
      }
      CHECK(max_relative_difference(logits(*model), wanted) <= (ranks == 1 ? 0 : 1e-5));
    });
  }

  int64_t bytes = 0, largest = 0;
  for (const Variable& p : full->parameters()) bytes += p.numel() * 4, largest = std::max(largest, p.numel() * 4);
  const int64_t before = memory_report().total.current;
  reset_peak_memory();
  const auto again = nn::from_pretrained(folder);
  // Beside the parameters: pages of the mapped file while they are read, and the three parts of in_proj while they are
  // joined.
  CHECK(memory_report().total.peak - before <= bytes + 2 * largest);
  CHECK(same(*again, *full));
}

TEST_CASE("pretrained: a vocabulary is resized, saved and loaded") {
  const OnCpu on_cpu;
  for (const bool tied : {true, false}) {
    CAPTURE(tied);
    manual_seed(4);
    nn::GPT model({.vocab = 10, .context = 8, .layers = 1, .width = 8, .heads = 2, .tied = tied});
    model.eval();
    const Tensor ids = Tensor::from<int64_t>({1, 2, 3, 9}, {1, 4});
    const Tensor before = model(ids).tensor(), table = model.tokens_table.weight.tensor().clone();
    CHECK(nn::resize_token_embeddings(model, 13, 4) == 16);
    CHECK(model.o.vocab == 16);
    CHECK(model.head.weight.shape() == Shape{16, 8});
    CHECK(model.parameters().size() == nn::GPT(model.o).parameters().size());
    CHECK(model.tokens_table.weight.requires_grad());
    CHECK(equal(model.tokens_table.weight.tensor().narrow(0, 0, 10).contiguous(), table));
    for (const int64_t row : {10, 15})
      CHECK(allclose(model.tokens_table.weight.tensor().narrow(0, row, 1).contiguous(), mean(table, {0}, true), 1e-6,
                     1e-7));
    CHECK(allclose(model(ids).tensor().narrow(2, 0, 10).contiguous(), before, 1e-5, 1e-6));
    model.loss(ids, Tensor::from<int64_t>({2, 3, 15, 0}, {1, 4})).backward();
    CHECK(model.head.weight.grad().shape() == Shape{16, 8});
    const TempDir to;
    nn::save_pretrained(model, to.str());
    CHECK(equal((*nn::from_pretrained(to.str()))(ids).tensor(), model(ids).tensor()));
    CHECK(nn::resize_token_embeddings(model, 10) == 10);
    CHECK(equal(model(ids).tensor(), before));
  }
  nn::GPT model({.vocab = 300, .context = 8, .layers = 1, .width = 64, .heads = 2});
  CHECK_ERROR(nn::resize_token_embeddings(model, 0), "expected a vocabulary from 1 to 2147483647 tokens, got 0");
  CHECK_ERROR(nn::resize_token_embeddings(model, 5, 0), "expected pad_to_multiple_of >= 1, got 0");
  nn::quantize(model, nn::quantize_options("row8"));
  CHECK_ERROR(nn::resize_token_embeddings(model, 301), "resize before quantize()");
  const nn::BuildEmpty scope;
  nn::GPT empty({.vocab = 10, .context = 8, .layers = 1, .width = 8, .heads = 2});
  CHECK_ERROR(nn::resize_token_embeddings(empty, 12), "these are empty or sharded");
}
