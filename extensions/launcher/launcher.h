#pragma once
// The launcher, for programs: the report about a failed job, made from the flight records that its ranks left.
#include <string>

namespace lockstep::dist {

/// Reads DIR/flight-*.json (dist/flight.h) and returns a report: a verdict, then a line for each rank. Error when there
/// are no files, or one is damaged.
std::string explain_flight(const std::string& folder);

}  // namespace lockstep::dist
