#pragma once
// HTTP/1.1 for strangers, by Boost.Beast, which only http.cpp sees; apps/ compiles it. One thread speaks to all
// clients, so that those who say nothing, or little, cost no thread; a request gets one when all of it is here. Bytes
// are counted as they come, all waiting has an end, and who waits longest goes first when there is no room.
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::serve {

struct HttpLimits {
  static constexpr int headers = 64 << 10, body = 1 << 20;  ///< bytes of a request
  static constexpr int received = 8 << 20;                  ///< of a body as it is sent, with what chunks add
  static constexpr int reading = 32 << 20;                  ///< of all requests that are not whole yet
  static constexpr int bodies = 32 << 20;                   ///< of all that are being answered
  static constexpr int connections = 4096, answers = 64;    ///< at a time
  static constexpr int request = 10'000, idle = 30'000;     ///< ms: from its first byte to its last; before the first
  static constexpr int write = 10'000;                      ///< ms for a client to take 256 KiB of its answer
  static constexpr int linger = 2'000, end = 2'000;  ///< ms for the rest of a refused request; at the server's end
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method, path;  ///< up to '?'
  HttpHeaders headers;
  std::string body;
  /// "": it has none.
  std::string header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string body, type = "application/json";
  HttpHeaders headers = {};
};

/// Who waits for an answer. Called by the thread that makes it: respond() once, or begin(), write()s and finish().
class HttpClient {
 public:
  virtual ~HttpClient() = default;
  virtual void respond(const HttpResponse& response) = 0;
  /// A response in pieces; its body is the first.
  virtual void begin(const HttpResponse& response) = 0;
  /// Waits while the client is slow. False: it is gone.
  virtual bool write(std::string_view piece) = 0;
  virtual void finish() = 0;
  /// It went away. One that only said that it sends no more is still here.
  virtual bool gone() const = 0;
  /// The server is about to end.
  virtual bool ending() const = 0;
};

struct HttpOptions {
  std::string host;
  int port = 0;               ///< 0: any that is free
  bool loopback_only = true;  ///< refuses to listen where others can reach it
  HttpHeaders headers = {};   ///< beside every answer
  std::function<HttpResponse(int status, const std::string& message)> error;
  /// When the headers are here: the answer, if they are enough, else the body is read. Must be quick.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> look;
  /// When the body is here, too, on a thread of its own.
  std::function<void(HttpRequest, HttpClient&)> handle;
  std::function<bool()> stop;  ///< looked at every now and then
  std::function<void(int port)> started = {};
};

/// Answers until stop() says so. Error when the port cannot be had.
void run_http(const HttpOptions& options);

}  // namespace lockstep::serve
