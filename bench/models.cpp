// The models of the PyTorch scripts that Lockstep is measured against, and the floating-point operations of a step.
#include "bench/models.h"

#include "data/safetensors.h"
#include "tensor/random.h"

namespace bench {

using namespace lockstep;

namespace {

/// Synthetic tokens, the same as those of batch() in gptmodel.py. Every row counts up with a random stride, so a model
/// can learn to continue it. The random numbers are from a 64-bit LCG.
std::pair<Tensor, Tensor> tokens(int64_t step, int64_t batch, int64_t length, int64_t vocab) {
  std::vector<int64_t> x, y;
  for (int64_t row = 0; row < batch; ++row) {
    const uint64_t s = (uint64_t(step) * 1000003 + uint64_t(row)) * 6364136223846793005u + 1442695040888963407u;
    const int64_t start = int64_t((s >> 33) % uint64_t(vocab)), stride = 1 + int64_t((s >> 13) % 7);
    for (int64_t t = 0; t < length; ++t) {
      x.push_back((start + t * stride) % vocab);
      y.push_back((start + (t + 1) * stride) % vocab);
    }
  }
  return {Tensor::from(x, {batch, length}), Tensor::from(y, {batch, length})};
}

/// The name of a parameter in the PyTorch script gpt.py: blocks.0.qkv.weight for blocks.0.attention.in_proj.weight.
std::string peer_name(std::string name) {
  const std::pair<std::string, std::string> renamed[] = {
      {"tokens.", "wte."}, {"positions.", "wpe."},         {"norm1.", "ln1."},
      {"norm2.", "ln2."},  {"attention.in_proj.", "qkv."}, {"attention.out_proj.", "proj."},
      {"mlp.up.", "fc."},  {"mlp.down.", "out."}};
  if (name.starts_with("norm.")) return "lnf." + name.substr(5);
  for (const auto& [ours, theirs] : renamed) {
    const size_t at = name.find(ours);
    if (at != std::string::npos) return name.replace(at, ours.size(), theirs);
  }
  return name;
}

Job make_gpt(const nn::GPT::Options& o, int64_t batch, int64_t steps, const std::string& weights) {
  Job job;
  auto model = std::make_shared<nn::GPT>(o);
  nn::GPT* const gpt = model.get();
  if (!weights.empty()) {
    const data::SafeTensors file = data::SafeTensors::open(weights);
    nn::State state;
    for (const nn::NamedParameter& p : gpt->named_parameters())
      state.emplace_back(p.name, file.tensor(peer_name(p.name)));
    gpt->load_state(state);
  }
  job.make_optimizer = [](nn::Module& m) {
    return std::make_unique<optim::AdamW>(
        m.parameters(), optim::AdamWOptions{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
  };
  std::vector<std::pair<Tensor, Tensor>> batches;
  for (int64_t s = 0; s < steps; ++s) batches.push_back(tokens(s, batch, o.context, o.vocab));
  job.infer = [gpt, x = batches[0].first] { (*gpt)(x); };
  job.batch = [batches = std::move(batches)](int64_t step) { return batches[size_t(step)]; };
  job.loss = [gpt, batch = job.batch](int64_t step) {
    const auto [x, y] = batch(step);
    return gpt->loss(x, y);
  };
  job.items = batch * o.context;
  job.unit = "tokens";
  // Matrix products take 6 operations per weight and token. Attention takes 12 * layers * context^2 * width per
  // sequence, of which a causal mask leaves half.
  const double matrices = double(o.layers) * 12 * o.width * o.width + double(o.vocab) * o.width;
  job.flops = 6 * matrices * double(job.items) + 12. * double(o.layers * o.context * o.context * o.width * batch) / 2;
  const int64_t w = o.width;
  for (const auto& [n, k] : {std::pair{3 * w, w}, {w, w}, {4 * w, w}, {w, 4 * w}, {o.vocab, w}})
    job.shapes.push_back({job.items, n, k});
  job.model = std::move(model);
  return job;
}

/// Makes a job for a network on random images of `shape`, with SGD with momentum as in the PyTorch scripts. products:
/// the network's matrix products. Each is counted three times: forward, weight gradient and input gradient, which the
/// first product does not have.
template <class Net>
Job make_net(std::unique_ptr<Net> net, const Shape& shape, const std::vector<GemmShape>& products) {
  Job job{.items = shape[0], .flops = -products[0].flops(), .shapes = products};
  for (const GemmShape& product : products) job.flops += 3 * product.flops();
  Net* const model = net.get();
  job.make_optimizer = [](nn::Module& m) {
    return std::make_unique<optim::SGD>(m.parameters(), optim::SGDOptions{.lr = 0.01, .momentum = 0.9});
  };
  const Tensor x = randn(shape), y = randint(0, 10, {shape[0]});
  job.loss = [=](int64_t) { return cross_entropy((*model)(x), y); };
  job.infer = [=] { (*model)(x); };
  job.model = std::move(net);
  return job;
}

Job make_mlp(int64_t batch) {
  auto net = std::make_unique<nn::Sequential>(nn::Linear({.in = 784, .out = 512}), nn::ReLU(),
                                              nn::Linear({.in = 512, .out = 512}), nn::ReLU(),
                                              nn::Linear({.in = 512, .out = 10}));
  return make_net(std::move(net), {batch, 784}, {{batch, 512, 784}, {batch, 512, 512}, {batch, 10, 512}});
}

Job make_lenet(int64_t batch) {
  auto net = std::make_unique<nn::Sequential>(nn::Conv2d({.in = 1, .out = 32}), nn::ReLU(), nn::MaxPool2d(),
                                              nn::Conv2d({.in = 32, .out = 64}), nn::ReLU(), nn::MaxPool2d(),
                                              nn::Flatten(), nn::Linear({.in = 64 * 5 * 5, .out = 128}), nn::ReLU(),
                                              nn::Linear({.in = 128, .out = 10}));
  return make_net(
      std::move(net), {batch, 1, 28, 28},
      {{batch * 26 * 26, 32, 9}, {batch * 11 * 11, 64, 32 * 9}, {batch, 128, 64 * 5 * 5}, {batch, 10, 128}});
}

/// Residual block of two 3x3 convolutions (He et al., 2016).
struct Basic : nn::Layer<Basic> {
  Basic(int64_t in, int64_t out, int64_t stride)
      : conv1({.in = in, .out = out, .stride = stride, .padding = 1, .bias = false}),
        norm1({.channels = out}),
        conv2({.in = out, .out = out, .padding = 1, .bias = false}),
        norm2({.channels = out}) {
    if (in != out || stride != 1) {
      shortcut.add(nn::Conv2d({.in = in, .out = out, .kernel = 1, .stride = stride, .bias = false}))
          .add(nn::BatchNorm2d({.channels = out}));
    }
  }
  Variable forward(const Variable& x) { return relu(norm2(conv2(relu(norm1(conv1(x))))) + shortcut(x)); }
  void fields(nn::Fields& f) override {
    f("conv1", conv1)("norm1", norm1)("conv2", conv2)("norm2", norm2)("shortcut", shortcut);
  }

  nn::Conv2d conv1;
  nn::BatchNorm2d norm1;
  nn::Conv2d conv2;
  nn::BatchNorm2d norm2;
  nn::Sequential shortcut;
};

/// The mean of each channel: (N, C, H, W) to (N, C).
struct ChannelMean : nn::Layer<ChannelMean> {
  Variable forward(const Variable& x) { return mean(x, {2, 3}); }
};

Job make_resnet(int64_t batch) {
  auto net = std::make_unique<nn::Sequential>(
      nn::Conv2d({.in = 3, .out = 16, .padding = 1, .bias = false}), nn::BatchNorm2d({.channels = 16}), nn::ReLU(),
      Basic(16, 16, 1), Basic(16, 32, 2), Basic(32, 64, 2), ChannelMean(), nn::Linear({.in = 64, .out = 10}));
  std::vector<GemmShape> products{{batch * 32 * 32, 16, 3 * 9}};
  for (int i = 0; i < 2; ++i) products.push_back({batch * 32 * 32, 16, 16 * 9});
  for (const auto& [out, side] : {std::pair<int64_t, int64_t>{32, 16}, {64, 8}})
    for (const int64_t k : {out / 2 * 9, out * 9, out / 2}) products.push_back({batch * side * side, out, k});
  products.push_back({batch, 10, 64});
  return make_net(std::move(net), {batch, 3, 32, 32}, products);
}

}  // namespace

Job make_job(const std::string& name, int64_t batch, int64_t steps, const std::string& weights) {
  LOCKSTEP_CHECK(weights.empty() || name.starts_with("gpt-"), "[bench] expected --load with a gpt model, got ", name);
  const auto size = [&](int64_t usual) { return batch > 0 ? batch : usual; };
  if (name == "gpt-tiny")
    return make_gpt({.vocab = 256, .context = 128, .layers = 4, .width = 128, .heads = 4}, size(8), steps, weights);
  if (name == "gpt-small")
    return make_gpt({.vocab = 256, .context = 256, .layers = 6, .width = 384, .heads = 6}, size(12), steps, weights);
  if (name == "gpt-124M")
    return make_gpt({.vocab = 50257, .context = 256, .layers = 12, .width = 768, .heads = 12}, size(2), steps, weights);
  if (name == "mlp") return make_mlp(size(128));
  if (name == "lenet") return make_lenet(size(64));
  if (name == "resnet") return make_resnet(size(32));
  throw Error("[bench] expected gpt-tiny, gpt-small, gpt-124M, mlp, lenet or resnet, got " + name);
}

}  // namespace bench
