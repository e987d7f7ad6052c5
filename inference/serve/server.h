#pragma once
// What a Service answers over HTTP, and to whom; apps/ compiles it.
#include <functional>
#include <string>

#include "inference/serve/service.h"

namespace lockstep::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                ///< 0: any that is free
  std::string api_key = {};       ///< "": none is asked for, and only this machine can ask
  std::string allow_origin = {};  ///< whose pages browsers let ask, or "*"; "": none but its own
  std::function<bool()> stop;     ///< looked at every now and then
  std::function<void(int port)> started = {};
};

/// Answers until stop() says so. Error when the port cannot be had, or when this build has no HTTP.
void run_server(Service& service, const ServerOptions& options);

}  // namespace lockstep::serve
