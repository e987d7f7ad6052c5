// DistributedDataParallel under a launcher, which passes the rank in RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
// MASTER_PORT.
//   lockstep run --nproc 2 -- build/examples/ddp --max_epochs 5 --batch_size 32
#include <CLI/CLI.hpp>

#include "examples/trainer.h"

int main(int argc, char** argv) {
  CLI::App app("simple distributed training job");
  int64_t max_epochs = 5, batch_size = 32;
  app.add_option("--max_epochs", max_epochs, "Total epochs to train the model")->capture_default_str();
  app.add_option("--batch_size", batch_size, "Input batch size on each rank")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  lockstep::dist::init();
  train_rank(max_epochs, batch_size);
  lockstep::dist::shutdown();
}
