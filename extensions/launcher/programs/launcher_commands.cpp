// Adds the commands of the extension launcher, of which `lockstep flight` is short enough to be here.
#include "extensions/launcher/programs/launcher_commands.h"

#include <iostream>
#include <memory>

#include "extensions/launcher/launcher.h"
#include "train/option_group.h"
#include "train/options.h"

namespace apps {

using namespace lockstep;
using train::OptionGroup;

/// flight: reads the records of collectives that the ranks of a failed job left, and finds the rank that came too late.
static void add_flight_command(CLI::App& app) {
  auto folder = std::make_shared<std::string>();
  CLI::App& flight = *app.add_subcommand(
      "flight", "shows which rank was late when a job failed, from the records that its ranks wrote");
  OptionGroup{flight}("folder", *folder,
                      "folder with flight-RANK.json: LOCKSTEP_FLIGHT_DIR, or attempt_N of a run's --log-dir")
      ->required();
  flight.callback([folder] { std::cout << dist::explain_flight(*folder); });
}

void add_launcher_commands(CLI::App& app, Shared& shared) {
  add_new_command(app);
  add_flight_command(app);
  add_verify_command(app, shared);
  add_run_command(app, shared);
}

}  // namespace apps
