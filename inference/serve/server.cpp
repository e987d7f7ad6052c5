#include "inference/serve/server.h"

#if defined(LOCKSTEP_WITH_HTTP)
#include <httplib.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#endif

namespace lockstep::serve {

#if defined(LOCKSTEP_WITH_HTTP)

namespace {

using data::Json;

constexpr int most_connections = 64, spare_threads = 4;  // these say to others that there are too many
constexpr int patience = 5000;                           // ms for a client to read or write
constexpr int idle = 30'000;                             // ms until its next request
constexpr int look = 20;                                 // ms between looks at whether it is still there

/// A client's socket. httplib has one of its own, but does not let a handler ask whether the client went away.
class Connection : public httplib::Stream {
 public:
  explicit Connection(socket_t socket) : socket_(socket) {
    const int yes = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  }
  bool ready(short what, int milliseconds) const {
    pollfd wanted{socket_, what, 0};
    return poll(&wanted, 1, milliseconds) > 0;
  }
  bool is_readable() const override { return begin_ < end_ || ready(POLLIN, patience); }
  bool is_writable() const override { return ready(POLLOUT, patience) && !closed(); }
  bool has_more(int milliseconds) const { return begin_ < end_ || (ready(POLLIN, milliseconds) && !closed()); }
  /// Whether the client has closed it.
  bool closed() const {
    char one = 0;
    const ssize_t got = recv(socket_, &one, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }
  ssize_t read(char* to, size_t size) override {
    if (begin_ == end_) {
      if (!ready(POLLIN, patience)) return -1;
      const ssize_t got = recv(socket_, buffer_, sizeof buffer_, 0);
      if (got <= 0) return got;
      begin_ = 0, end_ = size_t(got);
    }
    const size_t count = std::min(size, end_ - begin_);
    std::memcpy(to, buffer_ + begin_, count);
    begin_ += count;
    return ssize_t(count);
  }
  ssize_t write(const char* from, size_t size) override {
    return ready(POLLOUT, patience) ? send(socket_, from, size, MSG_NOSIGNAL) : -1;
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return socket_; }

 private:
  socket_t socket_;
  char buffer_[4096];
  size_t begin_ = 0, end_ = 0;
};

thread_local const Connection* current = nullptr;  // that this thread answers

class HttpServer : public httplib::Server {
 public:
  std::atomic<bool> stopping = false;

 private:
  std::atomic<int> open_ = 0;

  bool process_and_close_socket(socket_t socket) override {
    Connection connection(socket);
    current = &connection;
    const bool full = ++open_ > most_connections;
    if (full) --open_, refuse(connection);
    else
      for (bool closed = false; !closed && !stopping && waits(connection);)
        if (!answers(*this, connection, closed)) break;
    if (!full) --open_;
    current = nullptr;
    shutdown(socket, SHUT_RDWR);
    close(socket);
    return true;
  }
  /// Reads one request and answers it. The inner function of newer versions of httplib also takes both ends' addresses.
  static bool answers(auto& self, Connection& connection, bool& closed) {
    if constexpr (requires { self.process_request(connection, true, closed, nullptr); })
      return self.process_request(connection, self.stopping, closed, nullptr);
    else return self.process_request(connection, "", 0, "", 0, self.stopping, closed, nullptr);
  }
  /// For the next request.
  bool waits(const Connection& connection) const {
    for (int waited = 0; waited < idle && !stopping && !connection.closed(); waited += 100)
      if (connection.has_more(100)) return true;
    return false;
  }
  static void refuse(Connection& connection) {
    const std::string body =
        error_json(str("there are ", most_connections, " connections already"), "server_error").dump();
    const std::string text = str(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: ",
        body.size(), "\r\n\r\n", body);
    connection.write(text.data(), text.size());
    shutdown(connection.socket(), SHUT_WR);
    char rest[4096];  // what it sent, so that the answer is not lost by a reset
    for (int i = 0; i < 256 && connection.ready(POLLIN, 200); ++i)
      if (recv(connection.socket(), rest, sizeof rest, 0) <= 0) break;
  }
};

void set_json(httplib::Response& response, const Json& json, int status = 200) {
  response.status = status;
  response.set_content(json.dump(), "application/json");
}

/// Runs fn; what it throws becomes the response.
void guarded(httplib::Response& response, const std::function<void()>& fn) {
  try {
    fn();
  } catch (const BadRequest& error) {
    set_json(response, error_json(error.what(), "invalid_request_error", error.param), error.status);
  } catch (const std::exception& error) { set_json(response, error_json(error.what(), "server_error"), 500); }
}

std::string event(const Json& json) { return "data: " + json.dump() + "\n\n"; }

void answer(HttpServer& server, Service& service, Endpoint endpoint, const httplib::Request& request,
            httplib::Response& response) {
  guarded(response, [&] {
    const std::shared_ptr<Reply> reply = service.answer(endpoint, request.body);
    if (!reply->streams()) {
      while (!reply->ended()) {
        if (current->closed()) return;
        LOCKSTEP_CHECK(!server.stopping, "the server is ending");
        reply->pieces(look);
      }
      set_json(response, reply->whole());
      return;
    }
    response.set_header("Cache-Control", "no-cache");
    response.set_chunked_content_provider("text/event-stream", [reply, &server](size_t, httplib::DataSink& sink) {
      std::string out;
      bool over = false;
      try {
        if (current->closed()) return false;
        LOCKSTEP_CHECK(!server.stopping, "the server is ending");
        for (const Json& piece : reply->pieces(look)) out += event(piece);
        over = reply->ended();
        if (over) out += "data: [DONE]\n\n";
      } catch (const std::exception& error) {
        out += event(error_json(error.what(), "server_error"));
        over = true;
      }
      if (!out.empty() && !sink.write(out.data(), out.size())) return false;
      if (over) sink.done();
      return true;
    });
  });
}

/// In a time that does not depend on where they differ.
bool same_key(const std::string& a, const std::string& b) {
  unsigned different = a.size() != b.size();
  for (size_t i = 0; i < a.size() && !b.empty(); ++i) different |= unsigned(a[i] ^ b[i % b.size()]);
  return different == 0;
}

void set_routes(HttpServer& server, Service& service, const ServerOptions& options) {
  using httplib::Request, httplib::Response;
  server.set_payload_max_length(1 << 20);
  server.set_socket_options([](socket_t socket) {  // httplib's own let two servers have one port
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.new_task_queue = [] { return new httplib::ThreadPool(most_connections + spare_threads); };
  server.set_pre_routing_handler([&](const Request& request, Response& response) {
    const bool open = options.api_key.empty() || request.path == "/health" || request.method == "OPTIONS" ||
                      same_key(request.get_header_value("Authorization"), "Bearer " + options.api_key);
    if (open) return httplib::Server::HandlerResponse::Unhandled;
    set_json(response, error_json("expected the header Authorization: Bearer KEY", "authentication_error"), 401);
    return httplib::Server::HandlerResponse::Handled;
  });
  server.set_error_handler([](const Request& request, Response& response) {
    if (!response.body.empty()) return;
    const std::string what = response.status == 413   ? "expected a body of at most 1 MiB"
                             : response.status == 404 ? request.method + " " + request.path + ": there is no such thing"
                                                      : str("status ", response.status);
    set_json(response, error_json(what, "invalid_request_error"), response.status);
  });
  server.Post("/v1/completions",
              [&](const Request& q, Response& r) { answer(server, service, Endpoint::completions, q, r); });
  server.Post("/v1/chat/completions",
              [&](const Request& q, Response& r) { answer(server, service, Endpoint::chat, q, r); });
  server.Post("/tokenize",
              [&](const Request& q, Response& r) { guarded(r, [&] { set_json(r, service.tokenize(q.body)); }); });
  server.Get("/v1/models", [&](const Request&, Response& r) { set_json(r, service.models()); });
  server.Get("/v1/models/(.+)",
             [&](const Request& q, Response& r) { guarded(r, [&] { set_json(r, service.model(q.matches[1])); }); });
  if (!options.allow_origin.empty()) {
    server.set_default_headers({{"Access-Control-Allow-Origin", options.allow_origin}, {"Vary", "Origin"}});
    server.Options(".*", [](const Request& q, Response& r) {  // what a browser asks before it sends a request
      r.status = 204;
      r.set_header("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
      r.set_header("Access-Control-Allow-Headers", q.get_header_value("Access-Control-Request-Headers"));
      r.set_header("Access-Control-Max-Age", "600");
    });
  }
  server.Get("/health", [](const Request&, Response& r) { set_json(r, Json::Object{{"status", "ok"}}); });
  server.Get("/metrics",
             [&](const Request&, Response& r) { r.set_content(service.metrics(), "text/plain; version=0.0.4"); });
}

}  // namespace

void run_server(Service& service, const ServerOptions& options) {
  HttpServer server;
  set_routes(server, service, options);
  const int port = options.port == 0                                 ? server.bind_to_any_port(options.host)
                   : server.bind_to_port(options.host, options.port) ? options.port
                                                                     : -1;
  LOCKSTEP_CHECK(port > 0, "[serve] ", options.host, ":", options.port, " cannot be had; is another program there?");
  std::atomic<bool> failed = false;
  std::thread listener([&] { failed = !server.listen_after_bind(); });
  if (options.started) options.started(port);
  while (!failed && !options.stop()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  server.stopping = true;
  while (!failed && !server.is_running()) std::this_thread::yield();  // it may have only begun
  server.stop();
  listener.join();
  LOCKSTEP_CHECK(!failed || options.stop(), "[serve] the listening socket failed");
}

#else

void run_server(Service&, const ServerOptions&) {
  fail(
      "[serve] this build has no HTTP: install cpp-httplib (Debian and Ubuntu: apt-get install libcpp-httplib-dev), "
      "then: meson setup --reconfigure build, and build again");
}

#endif

}  // namespace lockstep::serve
