#pragma once
// An HTTP/1.1 server for untrusted clients, based on Boost.Beast; part of the program gpt-serve, not of the library.
// One thread reads from all connections, so idle and slow clients occupy no thread. A complete request is answered on a
// thread of a pool. Received bytes are limited and all waits have timeouts. When a limit is reached, the connections
// that have waited longest are dropped first.
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::serve {

/// Limits on clients.
struct HttpLimits {
  static constexpr int headers = 64 << 10, body = 1 << 20;  ///< bytes of a request
  static constexpr int received = 8 << 20;  ///< bytes of a body as it is sent, including the overhead of chunks
  static constexpr int reading = 32 << 20;  ///< bytes of all incomplete requests
  static constexpr int bodies = 32 << 20;   ///< bytes of all requests that are being answered
  static constexpr int connections = 4096, answers = 64;  ///< most connections, and most answers, at a time
  /// Milliseconds. request: from the first to the last byte of a request. idle: before the first byte.
  static constexpr int request = 10'000, idle = 30'000;
  static constexpr int write = 10'000;  ///< ms for a client to accept 256 KiB of its answer
  /// Milliseconds. linger: to read the rest of a refused request. end: to finish answers when the server ends.
  static constexpr int linger = 2'000, end = 2'000;
};

/// Names and values of headers, in order.
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

/// A received request.
struct HttpRequest {
  std::string method, path;  ///< path without the query
  HttpHeaders headers;
  std::string body;
  /// The value of a header, ignoring case; "" if it is missing.
  std::string header(std::string_view name) const;
};

/// A response to be sent.
struct HttpResponse {
  int status = 200;
  std::string body, type = "application/json";
  HttpHeaders headers = {};
};

/// The client of a request. The handler's thread calls respond() once, or begin(), write() repeatedly, and finish().
class HttpClient {
 public:
  virtual ~HttpClient() = default;
  /// Sends a complete response.
  virtual void respond(const HttpResponse& response) = 0;
  /// Starts a response that is sent in pieces, with `body` as the first.
  virtual void begin(const HttpResponse& response) = 0;
  /// Sends a piece; blocks while the client is slow. Returns false if the client has disconnected.
  virtual bool write(std::string_view piece) = 0;
  /// Ends a response that is sent in pieces.
  virtual void finish() = 0;
  /// True if the client has disconnected. A client that has only shut down its sending side is still connected.
  virtual bool gone() const = 0;
  /// True if the server is shutting down.
  virtual bool ending() const = 0;
};

/// Options of run_http().
struct HttpOptions {
  std::string host;
  int port = 0;               ///< port to listen on; 0: any free port
  bool loopback_only = true;  ///< true: refuse to listen on addresses that other hosts can reach
  HttpHeaders headers = {};   ///< added to every response
  /// Makes the response for an error.
  std::function<HttpResponse(int status, const std::string& message)> error;
  /// Called with the headers only: returns the response, or nullopt to read the body first. Must be fast, because all
  /// connections wait for it.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> look;
  /// Called with the complete request, on its own thread.
  std::function<void(HttpRequest, HttpClient&)> handle;
  std::function<bool()> stop;                  ///< called repeatedly; the server ends once it returns true
  std::function<void(int port)> started = {};  ///< called with the port when the server listens
};

/// Serves until stop() returns true. Error when the port is not available, or when this build has no HTTP.
void run_http(const HttpOptions& options);

}  // namespace lockstep::serve
