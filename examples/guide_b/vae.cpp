// A convolutional variational autoencoder whose latent mean also classifies, with a training loop of its own.
#include <lockstep.h>
#include <lockstep/operations.h>
#include <lockstep/summary.h>
#include <lockstep/vision.h>

#include <iostream>

namespace ls = lockstep;
namespace nn = ls::nn;

struct Vae : nn::Layer<Vae> {
  struct Result {
    ls::Variable picture, mean, log_variance, logits;
    void each_variable(const auto& fn) { fn(picture), fn(mean), fn(log_variance), fn(logits); }
  };
  nn::Conv2d conv1{{.in = 1, .out = 8, .kernel = 4, .stride = 2, .padding = 1}};   // 14 x 14
  nn::Conv2d conv2{{.in = 8, .out = 16, .kernel = 4, .stride = 2, .padding = 1}};  // 7 x 7
  nn::Linear to_mean{{.in = 16 * 7 * 7, .out = 16}}, to_log_variance{{.in = 16 * 7 * 7, .out = 16}};
  nn::Linear from_latent{{.in = 16, .out = 16 * 7 * 7}};
  nn::ConvTranspose2d up1{{.in = 16, .out = 8, .kernel = 4, .stride = 2, .padding = 1}};
  nn::ConvTranspose2d up2{{.in = 8, .out = 1, .kernel = 4, .stride = 2, .padding = 1}};
  nn::Linear head{{.in = 16, .out = 10}};

  Result forward(const ls::Variable& x) {
    const ls::Variable h = ls::relu(conv2(ls::relu(conv1(x)))).flatten(1);
    const ls::Variable mean = to_mean(h), log_variance = to_log_variance(h);
    ls::Variable z = mean;
    if (is_training()) z = mean + ls::exp(0.5 * log_variance) * ls::randn(mean.shape());
    const ls::Variable y = ls::relu(from_latent(z)).view({-1, 16, 7, 7});
    return {up2(ls::relu(up1(y))), mean, log_variance, head(mean)};
  }
  void fields(nn::Fields& f) override {
    f("conv1", conv1)("conv2", conv2)("to_mean", to_mean)("to_log_variance", to_log_variance);
    f("from_latent", from_latent)("up1", up1)("up2", up2)("head", head);
  }
};

// Reconstruction and KL divergence of a sample, and cross entropy.
ls::Variable criterion(const Vae::Result& out, const ls::Tensor& x, const ls::Tensor& target) {
  const auto reconstruction = ls::bce_with_logits(out.picture, x, {}, {}, ls::Reduction::sum) / x.size(0);
  const auto kl = -0.5 * ls::sum(1 + out.log_variance - ls::square(out.mean) - ls::exp(out.log_variance)) / x.size(0);
  return reconstruction + kl + 100 * ls::cross_entropy(out.logits, target);
}

int main() {
  ls::manual_seed(1234);
  const ls::data::SyntheticDigits train_set(1024, 1), test_set(256, 2);
  ls::data::DataLoader train_loader(train_set, {.batch_size = 32, .shuffle = true});
  ls::data::DataLoader test_loader(test_set, {.batch_size = 64});

  Vae net;
  ls::optim::AdamW opt(net.parameters(), {.lr = 4e-3, .weight_decay = 0.01});
  const int epochs = 8;
  const int64_t total = epochs * train_loader.size();
  ls::optim::LambdaLR schedule(opt, ls::optim::warmup_cosine(16, total, 0));
  ls::SummaryWriter writer("runs/vae");

  double accuracy = 0, first = 0, last = 0;
  int64_t step = 0;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    net.train();
    double running = 0;
    for (auto& [x, target] : train_loader) {
      const Vae::Result out = net(x);
      const ls::Variable loss = criterion(out, x, target);
      opt.zero_grad();
      loss.backward();
      const double norm = ls::optim::clip_grad_norm(net.parameters(), 200.0);
      opt.step();
      schedule.step();
      writer.add_scalar("train/loss", loss.item(), step);
      writer.add_scalar("train/grad_norm", norm, step);
      writer.add_scalar("train/lr", schedule.lr(), step++);
      running += loss.item();
    }
    last = running / double(train_loader.size());
    if (epoch == 0) first = last;

    net.eval();
    ls::NoGrad no_grad;
    int64_t correct = 0;
    double test_loss = 0;
    for (auto& [x, target] : test_loader) {
      const Vae::Result out = net(x);
      correct += ls::sum(ls::argmax(out.logits, -1) == target).item<int64_t>();
      test_loss += criterion(out, x, target).item() / double(test_loader.size());
      writer.add_image("reconstruction", ls::sigmoid(out.picture[0]).tensor(), step);
    }
    accuracy = double(correct) / double(test_set.size());
    writer.add_scalars("test", {{"loss", test_loss}, {"accuracy", accuracy}}, step);
    std::cout << "epoch " << epoch + 1 << ": train " << last << ", test " << test_loss << ", accuracy " << accuracy
              << ", lr " << schedule.lr() << "\n";
  }
  return accuracy > 0.8 && last < first ? 0 : 1;
}
