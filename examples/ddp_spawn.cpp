// DistributedDataParallel without a launcher: the program starts its ranks itself, as processes or as threads.
//   ddp_spawn --world_size 2 --max_epochs 5 --batch_size 32
#include <CLI/CLI.hpp>

#include "examples/trainer.h"

int main(int argc, char** argv) {
  CLI::App app("simple distributed training job");
  int64_t max_epochs = 5, batch_size = 32;
  int world_size = 2;
  bool threads = false;
  app.add_option("--max_epochs", max_epochs, "Total epochs to train the model")->capture_default_str();
  app.add_option("--batch_size", batch_size, "Input batch size on each rank")->capture_default_str();
  app.add_option("--world_size", world_size, "Number of ranks")->capture_default_str();
  app.add_flag("--threads", threads, "Ranks are threads of this process, for debugging");
  CLI11_PARSE(app, argc, argv);
  using lockstep::dist::SpawnOptions;
  // Each call is one rank; inside it, dist::world() is the group of all ranks.
  lockstep::dist::spawn(world_size, [&](int) { train_rank(max_epochs, batch_size); },
                        {.kind = threads ? SpawnOptions::Kind::threads : SpawnOptions::Kind::processes});
}
