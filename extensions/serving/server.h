#pragma once
// The HTTP interface of a Service, with access control. Compiled into gpt-serve, not into the library.
#include <functional>
#include <string>

#include "extensions/serving/service.h"

namespace lockstep::serve {

/// Options of run_server().
struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                ///< port to listen on; 0: any free port
  std::string api_key = {};       ///< key that clients must send; "": none, and only clients on this machine are served
  std::string allow_origin = {};  ///< origin whose web pages may send requests, or "*"; "": only the server's own
  std::function<bool()> stop;     ///< called repeatedly; the server ends once it returns true
  std::function<void(int port)> started = {};  ///< called with the port when the server listens
};

/// Serves until stop() returns true. Error when the port is not available, or when this build has no HTTP.
void run_server(Service& service, const ServerOptions& options);

}  // namespace lockstep::serve
