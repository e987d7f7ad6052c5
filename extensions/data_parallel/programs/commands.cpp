// `gpt train --parallel dp`: DataParallel in place of the model's own forward.
#include "apps/gpt_commands.h"
#include "extensions/data_parallel/data_parallel.h"

namespace apps {

using namespace lockstep;

void add_data_parallel_training_commands(CLI::App&, std::vector<std::string>&) {
  copy_to_devices = [](nn::GPT& model, const std::vector<Device>& devices) -> OnDevices {
    const auto copies = std::make_shared<parallel::DataParallel<nn::GPT>>(
        model, [&] { return nn::GPT(model.o); }, parallel::DataParallelOptions{.devices = devices});
    return {.forward = [copies](const Tensor& input) { return (*copies)(input); },
            .traffic = [copies] { return to_string(copies->bytes_moved()); }};
  };
}

}  // namespace apps
