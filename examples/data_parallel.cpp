// nn.DataParallel: one process, several devices. Each forward splits the batch, copies the model to every device and
// gathers the outputs on the first device. Backward sums the gradients on that device. The devices may be virtual:
//   LOCKSTEP_CPU_DEVICES=2 data_parallel
#include <lockstep.h>
#include <lockstep/data_parallel.h>

#include <iostream>

namespace ls = lockstep;

struct RandomDataset : ls::data::Dataset<ls::data::Example> {
  RandomDataset(int64_t length, int64_t in, int64_t out)
      : inputs(ls::randn({length, in})), targets(ls::randn({length, out})) {}
  int64_t size() const override { return inputs.size(0); }
  ls::data::Example get(int64_t i) const override { return {inputs[i], targets[i]}; }

  ls::Tensor inputs, targets;
};

struct Model : ls::nn::Layer<Model> {
  Model(int64_t in, int64_t out) : fc({.in = in, .out = out}) {}
  ls::Variable forward(const ls::Variable& input) {
    const ls::Variable output = fc(input);
    // A single write, because replicas print concurrently.
    std::cout << ls::str("\tIn Model: input size ", input.shape(), " output size ", output.shape(), "\n");
    return output;
  }
  void fields(ls::nn::Fields& f) override { f("fc", fc); }

  ls::nn::Linear fc;
};

int main() {
  const int64_t input_size = 5, output_size = 2, batch_size = 30, data_size = 100;
  ls::manual_seed(1);
  if (ls::device_count() == 1) std::cout << "One device; LOCKSTEP_CPU_DEVICES=2 makes two.\n";
  else std::cout << "Let's use " << ls::device_count() << " devices.\n";

  Model model(input_size, output_size);
  // Uses all devices; the factory makes replicas.
  ls::parallel::DataParallel parallel(model, [&] { return Model(input_size, output_size); });
  const ls::Device device = ls::all_devices()[0];
  parallel.to(device);  // parameters must be on the first device; a module moves in place, a tensor's .to() copies
  ls::optim::SGD optimizer(parallel.parameters(), {.lr = 0.01});

  ls::data::DataLoader loader(RandomDataset(data_size, input_size, output_size),
                              {.batch_size = batch_size, .shuffle = true});
  for (auto& [x, y] : loader) {
    const ls::Variable output = parallel(x.to(device));
    std::cout << "Outside: input size " << x.shape() << " output size " << output.shape() << "\n";
    const ls::Variable loss = ls::mse_loss(output, y.to(device));  // shapes must agree: a target (30, 5) is an error
    optimizer.zero_grad();
    loss.backward();   // sums the replicas' gradients on the first device; no averaging is needed
    optimizer.step();  // the next forward copies the new parameters
  }
  std::cout << to_string(parallel.bytes_moved());
}
