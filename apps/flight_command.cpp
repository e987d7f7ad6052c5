// `lockstep flight`: who was late when a job failed.
#include <iostream>
#include <memory>

#include "apps/commands.h"
#include "dist/flight.h"

namespace apps {

void add_flight_command(CLI::App& app) {
  auto folder = std::make_shared<std::string>();
  CLI::App& flight =
      *app.add_subcommand("flight", "who was late when a job failed: merges the records that its ranks wrote");
  flight
      .add_option("folder", *folder,
                  "folder with flight-RANK.json: LOCKSTEP_FLIGHT_DIR, or attempt_N of a run's --log-dir")
      ->required();
  flight.callback([folder] { std::cout << lockstep::dist::explain_flight(*folder); });
}

}  // namespace apps
