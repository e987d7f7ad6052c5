// `lockstep top`: shows how a running job does.
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <thread>

#include "apps/commands.h"
#include "extensions/summary/top.h"
#include "train/option_group.h"

namespace apps {

using namespace lockstep;

namespace {

struct TopAsked {
  std::string folder;
  double interval = 1;
  bool once = false;
};

void watch(const TopAsked& o) {
  RunView run(o.folder);
  const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
  int64_t printed = -1;
  while (run.is_running() && !o.once) {
    // On a terminal the table stays in its place. Elsewhere each step that is seen gets a line.
    if (is_terminal)
      std::cout << "\033[H\033[2J" << run.table() << "(Ctrl-C ends the display, not the run)\n" << std::flush;
    else if (run.step() != printed) std::cout << run.line() << std::endl;
    printed = run.step();
    if (!std::cout) return;  // the reader of a pipe has left
    std::this_thread::sleep_for(std::chrono::duration<double>(o.interval));
    run.refresh();
  }
  if (is_terminal && !o.once) std::cout << "\033[H\033[2J";
  std::cout << run.table() << std::flush;
}

}  // namespace

void add_summary_commands(CLI::App& app, Shared&) {
  auto o = std::make_shared<TopAsked>();
  CLI::App& command = *app.add_subcommand(
      "top", "shows how a running job does: progress, loss, speed, and memory and waits of each rank");
  const train::OptionGroup add(command);
  add("folder", o->folder, "folder given to --out")->required();
  add("--interval", o->interval, "seconds between two looks", train::number(0.05, 86400));
  add("--once", o->once, "print the state once, and end");
  command.callback([o] { watch(*o); });
}

}  // namespace apps
