// Quantized weights: golden values (golden/quant.safetensors), the same bits for all kernels and batch sizes, and
// quantized models, under tensor parallelism and in files.
#include <doctest/doctest.h>

#include <cmath>

#include "autograd/autocast.h"
#include "data/safetensors.h"
#include "extensions/quantization/cpu/quantized.h"
#include "extensions/quantization/tests/models.h"
#include "parallel/tensor_parallel/apply.h"
#include "parallel/tensor_parallel/shards.h"
#include "tests/golden_folder.h"
#include "tests/messages.h"
#include "tests/ranks.h"
#include "tests/temp_dir.h"
#include "tests/threads.h"

using namespace lockstep;
using namespace testing;
using data::SafeTensors;

namespace {

constexpr QuantFormat formats[] = {QuantFormat::row8, QuantFormat::group8, QuantFormat::group4};

/// The codes of group4, one per byte.
Tensor unpacked(const Quantized& q) {
  const auto packed = q.codes.to_vector<int64_t>();
  std::vector<int64_t> codes;
  for (int64_t o = 0; o < q.out; ++o)
    for (int64_t k = 0; k < q.in; ++k) {
      const int64_t byte = packed[size_t(o * q.codes.size(1) + k / 32 * 16 + k % 16)];
      codes.push_back((k % 32 < 16 ? byte & 15 : byte >> 4) - 8);
    }
  return Tensor::from(codes, {q.out, q.in}).to(i8);
}

struct Path {
  explicit Path(const std::string& name) { on_cpu::use_quantized_path(name); }
  ~Path() { on_cpu::use_quantized_path(on_cpu::quantized_paths()[0]); }
};

}  // namespace

TEST_CASE("quantised: codes, sums and outputs equal the golden file") {
  const auto file = SafeTensors::open(std::string(golden_folder()) + "/quant.safetensors");
  const auto at = [&](const char* name) { return file.tensor(name); };
  const Tensor x = at("x"), w = at("w"), b = at("b");
  const Quantized row8 = quantize(w, QuantFormat::row8), group8 = quantize(w, QuantFormat::group8),
                  group4 = quantize(w, QuantFormat::group4);
  CHECK(equal(row8.codes, at("w_q")));
  CHECK(equal(row8.scales, at("w_scale")));
  CHECK(equal(group8.codes, at("group8_q")));
  CHECK(equal(group8.scales.to(f32), at("group8_scale")));
  CHECK(equal(unpacked(group4), at("group4_q")));
  CHECK(equal(group4.scales.to(f32), at("group4_scale")));
  const on_cpu::CodedRows all = on_cpu::code_rows(x, {}),
                          below = on_cpu::code_rows(x, {.threshold = 6, .full_columns = true});
  CHECK(equal(all.codes.narrow(1, 0, 96).contiguous(), at("x_q")));
  CHECK(equal(all.scales, at("x_scale")));
  CHECK(equal(below.codes.narrow(1, 0, 96).contiguous(), at("int8_inliers_q")));
  CHECK(equal(below.scales, at("int8_inliers_scale")));
  CHECK(below.kept[0] == at("outlier_columns").to_vector<int64_t>());
  for (const std::string& path : on_cpu::quantized_paths()) {
    const Path with(path);
    INFO(path);
    const Tensor sums = round(linear(x, row8, {}, {.dynamic = true}) / all.scales.view({5, 1}) / row8.scales);
    CHECK(equal(sums.to(i32), at("acc_i32")));
    const QuantMatmulArgs outliers{.dynamic = true, .threshold = 6, .full_columns = true};
    CHECK(difference_of(linear(x, row8, b), at("weight_only")) <= 1e-6);
    CHECK(difference_of(linear(x, group8, b), at("group8_linear")) <= 1e-6);
    CHECK(difference_of(linear(x, group4, b), at("group4_linear")) <= 1e-6);
    CHECK(difference_of(linear(x, row8, b, {.dynamic = true}), at("dynamic")) <= 1e-6);
    CHECK(difference_of(linear(x, row8, b, outliers), at("llm_int8")) <= 1e-6);
  }
}

TEST_CASE("quantised: bits do not depend on kernels, batch or threads, and sums are right") {
  for (const Shape& shape : {Shape{37, 96}, {70, 50}, {1, 1}, {33, 1100}, {300, 600}})
    for (const QuantFormat format : formats)
      for (const double threshold : {-1.0, 0.0, 1.5}) {
        if (threshold >= 0 && format != QuantFormat::row8) continue;
        const int64_t out = shape[0], in = shape[1];
        INFO(shape, ", ", std::string(name_of(format)), ", ", threshold);
        manual_seed(out + in);
        // At most 32 rows: a CUDA device decodes the weight for more, and adds in another order.
        const Tensor w = randn({out, in}), x = randn({32, in}), b = randn({out});
        const Quantized q = quantize(w, format);
        const QuantMatmulArgs matmul_args{.dynamic = threshold >= 0, .threshold = std::max(0.0, threshold)};
        const Threads one(1);
        const Tensor y = linear(x, q, b, matmul_args);
        const Tensor wanted = linear(x.to(f64), dequantize(q).to(f64), b.to(f64));
        CHECK(difference_of(y, wanted) <= (matmul_args.dynamic ? 0.05 : 2e-6));
        for (const std::string& path : on_cpu::quantized_paths()) {
          const Path with(path);
          CHECK_MESSAGE(equal(linear(x, q, b, matmul_args), y), path);
          for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 17})
            CHECK_MESSAGE(equal(linear(x.narrow(0, 3, rows), q, b, matmul_args), y.narrow(0, 3, rows).contiguous()),
                          path, ", ", rows, " rows");
        }
        const Threads three(3);
        CHECK(equal(linear(x, q, b, matmul_args), y));
      }
}

TEST_CASE("quantised: weights of any magnitude keep as many digits") {
  manual_seed(6);
  const Tensor unit = randn({24, 96}), x = randn({17, 96});
  const auto error_of = [](const Tensor& got, const Tensor& wanted) {
    return norm(got.to(f64) - wanted.to(f64)).item() / norm(wanted.to(f64)).item();
  };
  for (const QuantFormat format : formats) {
    const double usual = error_of(dequantize(quantize(unit, format)), unit);
    CHECK(usual < (format == QuantFormat::group4 ? 0.1 : 0.0065));
    for (const double s : {1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-12, 1e-20, 1e-30, 1e5, 1e20, 1e36}) {
      INFO(std::string(name_of(format)), ", ", s);
      const Tensor w = unit * s;
      const Quantized q = quantize(w, format);
      CHECK(error_of(dequantize(q), w) < usual * 1.03);
      if (format == QuantFormat::row8 || s < 1e-6 || s > 1e6) CHECK(q.scales.dtype() == f32);
      else if (s >= 1e-2 && s < 1) CHECK(q.scales.dtype() == f16);
      const Tensor wanted = linear(x.to(f64), dequantize(q).to(f64));
      for (const std::string& path : on_cpu::quantized_paths()) {
        const Path with(path);
        const Tensor y = linear(x, q);
        CHECK_MESSAGE(error_of(y, wanted) < 1e-6, path);
        CHECK_MESSAGE(equal(linear(x.narrow(0, 3, 2), q), y.narrow(0, 3, 2).contiguous()), path);
        if (q.scales.dtype() == f32) continue;
        Quantized wide = q;  // the same scales stored in f32 give the same weights
        wide.scales = q.scales.to(f32);
        CHECK_MESSAGE((equal(linear(x, wide), y) && equal(dequantize(wide), dequantize(q))), path);
        CHECK_MESSAGE(equal(linear(x.narrow(0, 0, 1), wide), y.narrow(0, 0, 1).contiguous()), path);
      }
      const Threads three(3);
      CHECK(equal(quantize(w, format).scales, q.scales));
    }
    if (format == QuantFormat::row8) continue;
    // Besides ordinary groups: one of small values, one of zeros, and one whose values differ by a factor of 10^30.
    const Tensor mixed = unit.clone();
    mixed[3].narrow(0, 32, 32).copy_(unit[3].narrow(0, 32, 32) * 1e-9);
    mixed[4].narrow(0, 32, 32).zero_();
    mixed[5].narrow(0, 0, 1).fill_(1e-30);
    const Tensor back = dequantize(quantize(mixed, format));
    CHECK(error_of(back[3].narrow(0, 32, 32), mixed[3].narrow(0, 32, 32)) < 2 * usual);
    CHECK(equal(back[4].narrow(0, 32, 32), mixed[4].narrow(0, 32, 32)));
    CHECK(error_of(back, mixed) < usual * 1.03);
  }
  CHECK_ERROR(quantize(unit * 1e38, QuantFormat::group4), "expected finite weights below 2.9e38");
}

TEST_CASE("quantize: a state with scales of another dtype than the model's loads unchanged") {
  const auto tiny = seeded(small()), plain = seeded(small());
  const Tensor small_weight = tiny->blocks[0].mlp.up.weight.tensor();
  small_weight.copy_(small_weight * 1e-9);
  nn::quantize(*tiny), nn::quantize(*plain);
  CHECK(nn::quantized_weight(tiny->blocks[0].mlp.up.attached)->scales.dtype() == f32);
  CHECK(nn::quantized_weight(plain->blocks[0].mlp.up.attached)->scales.dtype() == f16);
  const Tensor of_tiny = (*tiny)(some_tokens()).tensor(), of_plain = (*plain)(some_tokens()).tensor();
  nn::State before;  // state of the model with f16 scales only
  for (const auto& [name, tensor] : plain->state()) before.emplace_back(name, tensor.clone());
  plain->load_state(tiny->state());
  CHECK(equal((*plain)(some_tokens()).tensor(), of_tiny));
  tiny->load_state(before);
  CHECK(equal((*tiny)(some_tokens()).tensor(), of_plain));
  const auto floating = seeded(small());
  nn::load_quantized(*floating, plain->state(), nn::quantized_metadata(*plain));
  CHECK(equal((*floating)(some_tokens()).tensor(), of_tiny));
}

TEST_CASE("quantised: activations, 16 bits, NaN and infinity") {
  manual_seed(3);
  const Tensor w = randn({40, 64}), x = randn({9, 64}), b = randn({40});
  for (const QuantFormat format : formats) {
    const Quantized q = quantize(w, format);
    for (const Activation a : {Activation::relu, Activation::gelu_tanh, Activation::gelu_erf, Activation::silu})
      CHECK(difference_of(linear(x, q, b, {.activation = a}), linear(x, dequantize(q), b, a)) <= 2e-6);
    CHECK(difference_of(linear(x.to(bf16), q), linear(x.to(bf16).to(f32), q)) <= 1e-2);
    CHECK(linear(x.to(f16), q).dtype() == f16);
    CHECK(equal(dequantize(quantize(zeros({3, 40}), format)), zeros({3, 40})));
    CHECK(quantize(zeros({1, 40}), format).scales.to_vector<double>()[0] == 1);
  }
  const Tensor bad = x.clone();
  bad[2].fill_(std::nan(""));
  const Tensor y = linear(bad, quantize(w, QuantFormat::row8), {}, {.dynamic = true});
  CHECK(any(isnan(y[2])).item<bool>());
  CHECK_FALSE(any(isnan(y[3])).item<bool>());
  CHECK_ERROR(quantize(bad, QuantFormat::group8), "expected finite weights");
  CHECK_ERROR(linear(x, quantize(w, QuantFormat::row8), {}, {.dynamic = true, .threshold = NAN}),
              "expected a threshold >= 0, and 0 unless dynamic is set, got nan");
  CHECK_ERROR(linear(x, quantize(w, QuantFormat::group8), {}, {.dynamic = true}), "row8");
  CHECK_ERROR(linear(randn({2, 63}), quantize(w, QuantFormat::row8)), "(..., 64)");
  const Tensor handle = handle_of(quantize(w, QuantFormat::group4));
  CHECK_ERROR(handle.to_vector<float>(), "a form that only linear() and matmul() read");
}

TEST_CASE("quantize: a model's Linears, the report, and the parameters left alone") {
  for (const bool tied : {true, false}) {
    const auto model = seeded(small(tied)), other = seeded(small(tied));
    const Tensor x = some_tokens(), before = (*model)(x).tensor();
    const nn::QuantizeReport report = nn::quantize(*model);
    CHECK(report.layers == 8);
    CHECK(report.relative_error.count("blocks.1.mlp.down.weight") == 1);
    CHECK(report.relative_error.at("blocks.0.attention.in_proj.weight") < 0.01);
    // 8.5 bits per weight.
    CHECK(report.bytes_before - report.bytes_after == 2 * 12 * 128 * 128 * 4 - 2 * 12 * 128 * 128 * 34 / 32);
    const Tensor after = (*model)(x).tensor();
    CHECK(difference_of(after, before) < 0.05);
    CHECK(difference_of(after, (*dequantized(*model, small(tied)))(x).tensor()) < 1e-5);
    int of_codes = 0;
    for (const auto& p : model->named_parameters()) {
      of_codes += p.variable.dtype() == i8;
      CHECK((p.variable.dtype() == i8) == p.name.ends_with(".weight.codes"));
      const bool codes = contains(p.name, ".weight.codes") || contains(p.name, ".weight.scales");
      CHECK(p.variable.requires_grad() == !codes);
    }
    CHECK(of_codes == 8);
    model->to(bf16);
    CHECK(nn::quantized_weight(model->blocks[0].attention.in_proj.attached)->scales.dtype() == f16);
    CHECK(difference_of((*model)(x).tensor(), after) < 0.1);
    const nn::QuantizeReport with_head = nn::quantize(*other, nn::quantize_options("group4,head"));
    CHECK(with_head.layers == 9);
    CHECK(with_head.notes.size() == (tied ? 1 : 0));
    CHECK(nn::quantized_weight(other->head.attached));
    CHECK(difference_of((*other)(x).tensor(), before) < 0.5);
    CHECK_ERROR(nn::quantize(*other), "quantised already");
    CHECK_ERROR(other->requires_grad_(true), "expected a floating or complex dtype");
  }
  const auto model = seeded(small());
  CHECK_ERROR(nn::quantize_options("group9"), "did you mean group");
  CHECK_ERROR(nn::quantize(*model, {.skip = {"atention"}}), "did you mean attention");
  CHECK_ERROR(nn::quantize(*model, {.dynamic = true}), "expected format row8 with dynamic");
  CHECK(nn::quantize(*model, {.skip = {"attention", "tokens", "head"}}).layers == 4);
}

TEST_CASE("quantize: tokens and logits are the same alone, in a batch, and under autocast within its precision") {
  for (const char* const matmul_args : {"row8", "group8", "group4,head", "dynamic,head", "llm_int8"}) {
    const auto model = seeded(small());
    nn::quantize(*model, nn::quantize_options(matmul_args));
    const Tensor x = some_tokens(2, 16), all = (*model)(x).tensor();  // 32 rows, see above
    for (const int64_t length : {1, 5, 15})
      CHECK_MESSAGE(equal((*model)(x.narrow(0, 1, 1).narrow(1, 0, length).contiguous()).tensor()[0],
                          all[1].narrow(0, 0, length).contiguous()),
                    matmul_args);
    const Autocast low(bf16);
    CHECK_MESSAGE(difference_of((*model)(x).tensor(), all) < 0.1, matmul_args);
  }
}

TEST_CASE("quantize: a model of codes is cut over ranks") {
  for (const char* const matmul_args : {"row8", "group8", "group4,head", "llm_int8,head"}) {
    const auto full = seeded(small());
    nn::quantize(*full, nn::quantize_options(matmul_args));
    const Tensor x = some_tokens(), wanted = (*full)(x).tensor();
    for (const int ranks : {1, 2, 4}) {
      const auto got = on_ranks<Tensor>(ranks, [&](int) {
        const auto model = seeded(small());
        nn::quantize(*model, nn::quantize_options(matmul_args));
        const auto cut = tensor_parallel::apply(*model, dist::world());
        LOCKSTEP_CHECK(nn::quantized_weight(model->blocks[0].mlp.up.attached)->codes.size(0) == 512 / ranks,
                       "expected codes in ", ranks, " slices");
        const Tensor logits = (*model)(x).tensor();
        const auto ours = model->named_parameters(), theirs = full->named_parameters();
        for (size_t i = 0; i < ours.size(); ++i) {
          const auto* const shard = cut.find(ours[i].variable);
          const Tensor mine = ours[i].variable.tensor();
          LOCKSTEP_CHECK(equal(shard ? tensor_parallel::joined(mine, shard->cut, dist::world()) : mine,
                               theirs[i].variable.tensor()),
                         ours[i].name, ": expected the whole weight's bits");
        }
        return logits;
      });
      for (const Tensor& logits : got)
        CHECK_MESSAGE(difference_of(logits, wanted) < (contains(matmul_args, "int8") ? 0.06 : 1e-5), matmul_args, ", ",
                      ranks);
    }
  }
  on_ranks(2, [](int) {
    nn::GPT model({.vocab = 50, .context = 8, .layers = 1, .width = 48, .heads = 4});
    nn::quantize(model);
    CHECK_ERROR(tensor_parallel::apply(model, dist::world()), "quantise it by row8");
  });
}

TEST_CASE("quantize: codes saved to a file load into a model with floating-point weights") {
  const TempDir at;
  const std::string path = at / "codes.safetensors";
  for (const char* const matmul_args : {"row8", "group8", "group4,head", "llm_int8"}) {
    const auto model = seeded(small());
    nn::quantize(*model, nn::quantize_options(matmul_args));
    data::save_safetensors(path, model->state(), nn::quantized_metadata(*model));
    const auto file = SafeTensors::open(path);
    nn::State state;
    for (const std::string& name : file.names()) state.emplace_back(name, file.tensor(name));
    manual_seed(1);
    nn::GPT other(small());
    other.eval();
    CHECK_ERROR(other.load_state(state), "missing");
    nn::State less = state;
    std::erase_if(less, [](const auto& entry) { return entry.first == "norm.weight"; });
    CHECK_ERROR(nn::load_quantized(other, less, file.metadata()), "norm.weight");
    CHECK_FALSE(nn::is_quantized(other));
    nn::load_quantized(other, state, file.metadata());
    CHECK_MESSAGE(equal(other(some_tokens()).tensor(), (*model)(some_tokens()).tensor()), matmul_args);
    CHECK(nn::quantized_metadata(other) == nn::quantized_metadata(*model));
  }
}
