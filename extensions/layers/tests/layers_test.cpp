// Layers of activations.h, shape_layers.h, norm.h and EmbeddingBag: random layers, gradients of a model
// with many layers, 16 bits, recomputed forwards, rejected calls. Their values are golden cases
// (golden/more_layers.safetensors).
#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <set>

#include "autograd/gradcheck.h"
#include "extensions/layers/layers.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "tests/autograd/check_gradient.h"
#include "tests/messages.h"
#include "tests/nn/properties.h"
#include "tests/threads.h"

using namespace lockstep;
using namespace lockstep::nn;

namespace {

/// From images of two channels to scores, with one layer of each kind that has parameters or moves elements.
struct ManyLayers : Layer<ManyLayers> {
  Sequential image{spectral_norm(Conv2d({.in = 2, .out = 4, .kernel = 3, .padding = 1})),
                   InstanceNorm2d({.channels = 4, .affine = true}),
                   PReLU({.channels = 4}),
                   ChannelShuffle({.groups = 2}),
                   PixelShuffle({.factor = 2}),
                   ELU({.alpha = 0.5}),
                   PixelUnshuffle({.factor = 2}),
                   Flatten(),
                   weight_norm(Linear({.in = 4 * 2 * 2, .out = 6})),
                   GLU(),
                   SiLU(),
                   Identity(),
                   Tanh()};
  EmbeddingBag words{{.num = 5, .dim = 3}};
  Linear both{{.in = 6, .out = 2}};
  Variable forward(const Variable& x, const Tensor& index, const Tensor& offsets) {
    return both(cat(std::vector<Variable>{image(x), words(index, offsets)}, 1));
  }
  void fields(Fields& f) override { f("image", image)("words", words)("both", both); }
};

const Tensor bag_index() { return Tensor::from<int64_t>({1, 4, 2, 0, 3}); }
const Tensor bag_offsets() { return Tensor::from<int64_t>({0, 2, 2}); }

}  // namespace

TEST_CASE("BatchNorm3d is BatchNorm1d of the flattened volumes") {
  manual_seed(3);
  BatchNorm3d volumes({.channels = 3});
  BatchNorm1d flat({.channels = 3});
  const Tensor data = randn({2, 3, 2, 4, 5});
  for (const bool training : {true, false}) {
    volumes.train(training), flat.train(training);
    const Variable x(data, true), y(data.clone(), true);
    const Variable of_volumes = volumes(x), of_flat = flat(y.reshape({2, 3, 40}));
    CHECK(equal(of_volumes.tensor().reshape({2, 3, 40}), of_flat.tensor()));
    sum(square(of_volumes)).backward(), sum(square(of_flat)).backward();
    CHECK(equal(x.grad(), y.grad()));
    CHECK(equal(volumes.running_var, flat.running_var));
  }
}

TEST_CASE("layers: gradients of a model of many, and it learns") {
  const Threads one(1);  // too small for more threads
  manual_seed(11);
  ManyLayers net;
  CHECK(net.parameters().size() == 11);
  const Variable x(randn({3, 2, 2, 2}, {.dtype = f64}), true);
  net.to(f64).eval();  // in eval mode spectral_norm does not update its vectors
  std::vector<Variable> inputs = net.parameters();
  inputs.push_back(x);
  const auto run = [&](const std::vector<Variable>&) { return net(x, bag_index(), bag_offsets()); };
  CHECK(gradcheck(run, inputs) == "");

  net.to(f32).train();
  optim::AdamW optimizer(net.parameters(), {.lr = 3e-2});
  const Tensor images = x.tensor().to(f32), target = Tensor::from<int64_t>({1, 0, 1});
  const auto [first, last] = testing::first_and_last(
      optimizer, 60, [&] { return cross_entropy(net(images, bag_index(), bag_offsets()), target); });
  CHECK(last < 0.2 * first);
  // After training, the normalized weight still has a largest singular value of 1.
  auto& conv = dynamic_cast<Parametrized<Conv2d, SpectralNorm>&>(net.image[0]);
  const NoGrad no_grad;
  for (int i = 0; i < 50; ++i) conv.parametrization.weight(true);
  const Tensor w = conv.parametrization.weight(false).tensor().reshape({4, 18});
  CHECK(norm(matmul(w, conv.parametrization.v)).item() == doctest::Approx(1));
  const Tensor other = randn({18});
  CHECK(norm(matmul(w, other)).item() < norm(other).item());
}

TEST_CASE("layers: gradients of group_norm") {
  manual_seed(6);
  CHECK_GRADIENTS(group_norm(x[0], 3, x[1], x[2]), {2, 6, 3, 2}, {6}, {6});
}

TEST_CASE("layers: dropout of channels, and of SELU's values") {
  manual_seed(12);
  const Tensor x = ones({40, 50, 3, 2, 2});
  struct Row {
    std::shared_ptr<Module> layer;
    Tensor x;
    int64_t together;                              ///< number of elements that are dropped together
    double scale = 4. / 3, low = 0, high = scale;  ///< of a kept element; values of dropped and kept ones
  };
  const double scale = 1 / std::sqrt((1.7580993408473766 * 1.7580993408473766 * 0.25 + 1) * 0.75);
  const double low = scale * -1.7580993408473766 * 0.75, high = scale + scale * 1.7580993408473766 * 0.25;
  const Dropout::Options quarter{.p = 0.25};
  const std::vector<Row> rows{{std::make_shared<Dropout1d>(quarter), x.view({40, 50, 12}), 12},
                              {std::make_shared<Dropout1d>(quarter), x.view({2000, 12}), 12},
                              {std::make_shared<Dropout2d>(quarter), x.view({40, 50, 3, 4}), 12},
                              {std::make_shared<Dropout3d>(quarter), x, 12},
                              {std::make_shared<Dropout3d>(quarter), x.view({2000, 3, 2, 2}), 12},
                              {std::make_shared<AlphaDropout>(quarter), x, 1, scale, low, high},
                              {std::make_shared<FeatureAlphaDropout>(quarter), x, 12, scale, low, high}};
  for (const Row& row : rows) {
    CAPTURE(row.layer->kind());
    const Variable in(row.x, true), out = row.layer->call(in);
    const Tensor fates = out.tensor().reshape({row.x.numel() / row.together, row.together});
    CHECK(equal(amax(fates, {1}), amin(fates, {1})));
    std::set<float> values;
    for (const float v : out.tensor().to_vector<float>()) values.insert(v);
    REQUIRE(values.size() == 2);
    CHECK(*values.begin() == doctest::Approx(row.low));
    CHECK(*values.rbegin() == doctest::Approx(row.high));
    const double kept = sum(gt(out.tensor(), full({}, 0.5)).to(f32)).item() / double(row.x.numel());
    CHECK(kept == doctest::Approx(0.75).epsilon(0.06));
    sum(out).backward();
    CHECK(allclose(in.grad(), gt(out.tensor(), full({}, 0.5)).to(f32) * row.scale));
    row.layer->eval();
    CHECK(equal(row.layer->call(in).tensor(), row.x));
  }
  CHECK(equal(Dropout3d({.p = 1})(x).tensor(), zeros_like(x)));
  CHECK(equal(AlphaDropout({.p = 1})(x).tensor(), zeros_like(x)));

  RReLU rrelu({.lower = 0.2, .upper = 0.4});
  const Variable in(randn({1000}), true), out = rrelu(in);
  sum(out).backward();
  CHECK(allclose(in.grad() * in.tensor(), out.tensor()));
  const Tensor below = masked_fill(in.grad(), gt(in.tensor(), zeros({})), 0.3);
  CHECK((amin(below).item() >= 0.2 && amin(below).item() < 0.21 && amax(below).item() < 0.4 &&
         amax(below).item() > 0.39));
}

TEST_CASE("layers: a weight that is made for every call") {
  manual_seed(13);
  Linear plain({.in = 4, .out = 3});
  Linear copy({.in = 4, .out = 3});
  copy.load_state(plain.state());
  auto normed = weight_norm(std::move(copy));
  std::vector<std::string> names;
  for (auto& p : normed.named_parameters()) names.push_back(p.name + " " + str(p.variable.shape()));
  CHECK(names == std::vector<std::string>{"parametrizations.weight.original0 (3, 1)",
                                          "parametrizations.weight.original1 (3, 4)", "bias (3)"});
  const Tensor x = randn({5, 4});
  CHECK(allclose(normed(x).tensor(), plain(x).tensor()));  // initially equal to the layer without the norm
  CHECK(!normed.layer.weight.defined());
  CHECK_ERROR(normed(randn({5, 7})), "7");
  CHECK(!normed.layer.weight.defined());
  CHECK(contains(summary(normed), "WeightNorm"));
  manual_seed(13);
  auto spectral = spectral_norm(Linear({.in = 4, .out = 3}));
  manual_seed(13);
  std::optional<BuildEmpty> scope(std::in_place);
  auto built_empty = spectral_norm(Linear({.in = 4, .out = 3}));
  scope.reset();
  fill(built_empty);
  const State state = built_empty.state(), expected = spectral.state();
  REQUIRE(state.size() == 4);
  for (size_t i = 0; i < 4; ++i) CHECK_MESSAGE(equal(state[i].second, expected[i].second), state[i].first);
  const Tensor u = spectral.parametrization.u.clone();
  spectral(x);
  CHECK(!equal(spectral.parametrization.u, u));
  spectral.eval();
  CHECK(!spectral.layer.is_training());
  CHECK(equal(spectral(x).tensor(), spectral(x).tensor()));
}

TEST_CASE("layers: 16 bits are near f32") {
  manual_seed(14);
  const Tensor image = randn({2, 4, 4, 4});
  Sequential net(InstanceNorm2d({.channels = 4, .affine = true, .track = true}), PReLU({.channels = 4}),
                 weight_norm(Conv2d({.in = 4, .out = 4})));
  const Tensor wide = net(image).tensor();
  for (const DType dtype : {f16, bf16}) {
    net.to(dtype);
    const Variable low = net(image.to(dtype));
    CHECK(low.dtype() == dtype);
    CHECK(allclose(low.tensor().to(f32), wide, 0.02, dtype == f16 ? 1e-2 : 6e-2));
  }
  EmbeddingBag bag({.num = 5, .dim = 3});
  const Tensor mean = bag(bag_index(), bag_offsets()).tensor();
  bag.to(bf16);
  CHECK(allclose(bag(bag_index(), bag_offsets()).tensor().to(f32), mean, 0.01, 0.01));
}

TEST_CASE("layers: invalid options are rejected") {
  const Tensor index = bag_index();
  const auto offsets = [](std::initializer_list<int64_t> at) { return Tensor::from<int64_t>(at); };
  EmbeddingBag bag({.num = 5, .dim = 2}), summed({.num = 5, .dim = 2, .mode = EmbeddingBag::Mode::sum});
  CHECK_REJECTED(PReLU, ({.channels = 0}), "channels > 0, got 0");
  CHECK_REJECTED(PReLU, ({.channels = 3})(zeros({2, 4})), "input (N, 3, ...), got (2, 4)");
  CHECK_REJECTED(PReLU, ({.channels = 3})(zeros({3})), "input (N, 3, ...), got (3)");
  CHECK_REJECTED(RReLU, ({.lower = 0.5, .upper = 0.25}), "finite lower <= upper, got 0.5 and 0.25");
  CHECK_REJECTED(GLU, ()(zeros({2, 5})), "an even size in dim -1, got (2, 5)");
  CHECK_REJECTED(GLU, ()(zeros({})), "an even size in dim -1, got ()");
  CHECK_REJECTED(Dropout2d, ({.p = 1.5}), "p in [0, 1], got 1.5");
  CHECK_REJECTED(Dropout2d, ()(zeros({2, 3, 4})), "(4)-dimensional input, got (2, 3, 4)");
  CHECK_REJECTED(Dropout1d, ()(zeros({2})), "(2, 3)-dimensional input, got (2)");
  CHECK_REJECTED(Unflatten, ({.dim = 0, .shape = {}}), "a shape of at least one dim");
  CHECK_ERROR(Unflatten({.dim = 0, .shape = {-1, -1}}), "at most one of -1, got (-1, -1)");
  CHECK_REJECTED(Unflatten, ({.dim = 1, .shape = {-1, 4}})(zeros({2, 6})),
                 "sizes whose product is 6, dim 1 of (2, 6), got (-1, 4)");
  CHECK_ERROR(Unflatten({.dim = 2, .shape = {-1, 4}})(zeros({2, 6})), "[Unflatten]");
  CHECK_REJECTED(PixelShuffle, ({.factor = 0}), "factor > 0, got 0");
  CHECK_REJECTED(PixelShuffle, ({.factor = 2})(zeros({2, 6, 4, 4})),
                 "input (..., C, H, W) with C a multiple of 4, got");
  CHECK_ERROR(PixelUnshuffle({.factor = 2})(zeros({2, 6, 4, 3})),
              "expected input (..., C, H, W) with H and W multiples of 2, got (2, 6, 4, 3)");
  CHECK_REJECTED(ChannelShuffle, ({.groups = 4})(zeros({2, 6, 4})), "input (N, C, ...) with C a multiple of 4");
  CHECK_REJECTED(group_norm, (zeros({64, 5}), 2), "x (N, C, ...) with C a multiple of 2 groups, got (64, 5)");
  CHECK_ERROR(GroupNorm({.groups = 3, .channels = 4}), "expected groups to divide 4");
  CHECK_ERROR(BatchNorm3d({.channels = 4})(zeros({2, 4, 3, 3})), "[BatchNorm3d] expected (5)-dimensional input");
  CHECK_ERROR(InstanceNorm1d({.channels = 0}), "[InstanceNorm] expected channels > 0, got 0");
  CHECK_REJECTED(InstanceNorm2d, ({.channels = 3})(zeros({2, 4, 5, 5})),
                 "4-dimensional input with 3 channels in dim 1, or the same without a batch, got");
  CHECK_REJECTED(InstanceNorm1d, ({.channels = 3})(zeros({2, 3, 5, 5})), "3-dimensional input");
  CHECK_ERROR(InstanceNorm1d({.channels = 3})(zeros({2, 3, 1})), "expected more than 1 value per channel");
  CHECK_ERROR(EmbeddingBag({.num = 0, .dim = 2}), "expected sizes > 0, got num 0");
  CHECK_ERROR_BEGINS(bag(index), "[EmbeddingBag] expected offsets with an index of one dim");
  CHECK_ERROR(bag(index.view({5, 1}), offsets({0})), "and none with (bags, n), got (5, 1)");
  CHECK_ERROR(bag(index.view({5, 1, 1})), "expected index (n) with offsets, or (bags, n)");
  CHECK_ERROR(bag(index, zeros({2})), "expected offsets i64 (bags), got f32 (2)");
  CHECK_ERROR(bag(index, offsets({1, 2})), "expected non-decreasing offsets from 0 up to");
  CHECK_ERROR(bag(index, offsets({0, 3, 2})), "up to 5, the number of indices");
  CHECK_ERROR(bag(index, offsets({0, 6})), "up to 5, the number of indices");
  CHECK_ERROR(EmbeddingBag({.num = 5, .dim = 2, .last_offset = true})(index, offsets({0, 3})), "which is the last one");
  CHECK_ERROR(bag(index, offsets({0}), ones({5})), "and mode sum");
  CHECK_REJECTED(EmbeddingBag, ({.num = 5, .dim = 2, .mode = EmbeddingBag::Mode::sum})(index, offsets({0}), ones({4})),
                 "weights of index's shape (5) in f32 and mode sum, got (4) in f32");
  CHECK_ERROR(summed(index, offsets({0}), ones({5}, {.dtype = f64})), "got (5) in f64");
  CHECK_ERROR(weight_norm(Linear({.in = 2, .out = 2}), {.dim = 2}), "[WeightNorm]");
  CHECK_ERROR(weight_norm(RMSNorm({.size = 4})),
              "[WeightNorm] expected a layer with a weight of at least 2 dims, got (4)");
  CHECK_ERROR(spectral_norm(Linear({.in = 2, .out = 2}), {.iterations = 0}), "[SpectralNorm] expected iterations > 0");
}

TEST_CASE("layers: built empty, they are filled with the bits of plain construction") {
  testing::check_built_empty(
      [] { return Sequential(Conv2d({.in = 2, .out = 3, .kernel = 3}), GroupNorm({.groups = 1, .channels = 3})); });
  testing::check_built_empty(
      [] { return Sequential(weight_norm(Linear({.in = 4, .out = 3})), PReLU({.channels = 3})); });
}

TEST_CASE("layers with state count a forward that runs twice once") {
  const struct {
    const char* name;
    std::function<Sequential()> make;
    Shape shape;
  } rows[] = {
      {"InstanceNorm2d",
       [] { return Sequential(InstanceNorm2d({.channels = 2, .affine = true, .track = true})); },
       {4, 2, 6, 6}},
      {"SpectralNorm", [] { return Sequential(spectral_norm(Linear({.in = 16, .out = 16})), Tanh()); }, {16, 16}},
      {"SpectralNorm, 3 iterations",
       [] { return Sequential(spectral_norm(Conv2d({.in = 2, .out = 3, .kernel = 3}), {.iterations = 3}), Tanh()); },
       {4, 2, 6, 6}},
      {"WeightNorm", [] { return Sequential(weight_norm(Linear({.in = 16, .out = 16})), Tanh()); }, {16, 16}},
  };
  for (const auto& [name, make, shape] : rows) {
    CAPTURE(std::string(name));
    testing::check_recomputed({make, shape});
  }
}
