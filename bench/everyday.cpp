// Operations of everyday programs other than transformers: recurrent layers, upsampling, Fourier transforms,
// decompositions, a step of a DCGAN, loading pictures. Prints a JSON line with the median time of each operation.
// everyday.py does the same in PyTorch.
//
//   bench_everyday --only fft --jpegs FOLDER      (everyday.py --make FOLDER writes pictures)
#include <fmt/core.h>

#include <functional>

#include "base/threads.h"
#include "bench/program.h"
#include "extensions/layers/activations.h"
#include "extensions/linear_algebra/linalg.h"
#include "extensions/operations/losses.h"
#include "extensions/recurrent/layers.h"
#include "extensions/spectral/fft.h"
#include "extensions/vision/vision.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "tensor/random.h"

using namespace lockstep;

namespace {

/// The DCGAN of PyTorch's tutorial (Radford et al., 2015): pictures of 64 x 64 from 100 numbers, batches of 16.
struct Dcgan {
  static constexpr int64_t batch = 16, noise = 100, width = 64;
  nn::Sequential maker, judge;
  optim::Adam makes, judges;
  Tensor real = randn({batch, 3, 64, 64});

  /// Five convolutions of 4 x 4 between these channels. All halve or double the side, but for number `plain`, 0 or 4.
  template <class Conv, class Activation>
  static nn::Sequential net(const std::vector<int64_t>& channels, size_t plain, const Activation& activation) {
    nn::Sequential s;
    for (size_t i = 0; i < 5; ++i) {
      s.add(Conv({.in = channels[i],
                  .out = channels[i + 1],
                  .kernel = 4,
                  .stride = i == plain ? 1 : 2,
                  .padding = i == plain ? 0 : 1,
                  .bias = false}));
      if (i < 4 && (i > 0 || plain == 0)) s.add(nn::BatchNorm2d({.channels = channels[i + 1]}));
      if (i < 4) s.add(activation());
    }
    return s;
  }
  Dcgan()
      : maker(
            net<nn::ConvTranspose2d>({noise, width * 8, width * 4, width * 2, width, 3}, 0, [] { return nn::ReLU(); })),
        judge(net<nn::Conv2d>({3, width, width * 2, width * 4, width * 8, 1}, 4,
                              [] { return nn::LeakyReLU({.slope = 0.2}); })),
        makes(maker.parameters(), {.lr = 2e-4, .beta1 = 0.5}),
        judges(judge.parameters(), {.lr = 2e-4, .beta1 = 0.5}) {
    maker.add(nn::Tanh());
  }
  Variable loss(const Variable& pictures, double as) {
    const Variable scores = judge(pictures).reshape({-1});
    return bce_with_logits(scores, Variable(full({batch}, as)));
  }
  void step() {
    const Variable made = maker(Variable(randn({batch, noise, 1, 1})));
    judges.zero_grad();
    (loss(Variable(real), 1) + loss(made.detach(), 0)).backward();
    judges.step();
    makes.zero_grad();
    loss(made, 1).backward();
    makes.step();
  }
};

}  // namespace

int main(int argc, char** argv) {
  bench::Program app("everyday programs' operations");
  std::string only, jpegs;
  double seconds = 1;
  app.add_option("--only", only, "cases whose name contains this");
  app.add_option("--jpegs", jpegs, "folder with a subfolder of pictures per class");
  app.add_option("--seconds", seconds, "least time for each case");
  return app.run(argc, argv, [&] {
    manual_seed(1);
    const auto time = [&](const std::string& name, const std::function<void()>& fn) {
      fn();
      std::vector<double> all;
      double sum = 0;
      for (; sum < seconds || all.size() < 3; sum += all.back()) all.push_back(bench::seconds_of(fn));
      fmt::print("{{\"case\": \"{}\", \"ms\": {:.4f}}}\n", name, 1e3 * bench::median(all));
    };
    const auto wanted = [&](const std::string& name) { return name.find(only) != std::string::npos; };
    if (wanted("lstm")) {
      nn::LSTM lstm({.input = 512, .hidden = 512, .layers = 2});
      const Tensor x = randn({100, 32, 512});
      time("lstm", [&] { lstm.zero_grad(), sum(lstm(x).output).backward(); });
    }
    if (wanted("bilinear")) {
      const Variable x(randn({16, 64, 56, 56}), true);
      const Tensor g = randn({16, 64, 112, 112});
      const InterpolateOptions up{.scale = {2}, .mode = Resampling::linear};
      time("bilinear", [&] { grad({interpolate(x, up)}, {x}, {.grad_outputs = {Variable(g)}}); });
    }
    const std::pair<const char*, Shape> lines[] = {
        {"fft_2e20", {1 << 20}}, {"fft_1000x1024", {1000, 1024}}, {"fft_4096x60", {4096, 60}}};
    for (const auto& [name, shape] : lines)
      if (wanted(name)) {
        const Tensor x = complex(randn(shape), randn(shape));
        time(name, [&] { fft::fft(x); });
      }
    const Tensor a = randn({512, 512}), symmetric = a + a.t();
    if (wanted("svd_512")) time("svd_512", [&] { linalg::svd(a, false); });
    if (wanted("eigh_512")) time("eigh_512", [&] { linalg::eigh(symmetric); });
    if (wanted("dcgan")) {
      Dcgan d;
      time("dcgan", [&] { d.step(); });
    }
    if (wanted("jpeg") && !jpegs.empty()) {  // single-threaded
      set_threads(1);
      const auto pictures = [&](const data::Transform& t) { return data::ImageFolder(jpegs, t); };
      const auto plain = pictures({});
      const auto train = pictures([](const Tensor& x) {
        return data::ToTensor()(data::RandomHorizontalFlip()(data::RandomResizedCrop{.height = 224, .width = 224}(x)));
      });
      for (const auto& [name, folder] : {std::pair{"jpeg_read", &plain}, {"jpeg_train", &train}})
        time(name, [&, f = folder] {
          for (int64_t i = 0; i < f->size(); ++i) f->get(i);
        });
    }
  });
}
