// The HTTP server: accepts connections and enforces the limits. See http.h.
#include "extensions/serving/http.h"

#include <algorithm>

#include "base/check.h"

#if defined(LOCKSTEP_WITH_HTTP)
#include <sys/resource.h>

#include <boost/asio.hpp>

#include "extensions/serving/http_connection.h"
#endif

namespace lockstep::serve {

std::string HttpRequest::header(std::string_view name) const {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; };
  const auto found =
      std::ranges::find_if(headers, [&](const auto& h) { return std::ranges::equal(h.first, name, {}, lower, lower); });
  return found == headers.end() ? "" : found->second;
}

#if defined(LOCKSTEP_WITH_HTTP)

namespace {

HttpServer::HttpServer(const HttpOptions& options_) : options(options_) {
  rlimit files{};  // limit of descriptors; each connection needs one
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, HttpLimits::connections + 256);
  setrlimit(RLIMIT_NOFILE, &files);
  getrlimit(RLIMIT_NOFILE, &files);
  max_connections_ = std::min<size_t>(max_connections_, files.rlim_cur > 512 ? files.rlim_cur - 256 : 256);
}

int HttpServer::listen() {
  ErrorCode error;
  const auto found =
      tcp::resolver(io).resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
  if (!error) {
    const tcp::endpoint place = *found.begin();
    auto address = place.address();
    if (address.is_v6() && address.to_v6().is_v4_mapped())
      address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
    LOCKSTEP_CHECK(!options.loopback_only || address.is_loopback(), "[serve] expected an API key to listen at ",
                   options.host, ", which others can reach: give --api-key-file FILE, or set LOCKSTEP_API_KEY");
    acceptor_.open(place.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(place, error);
    if (!error) acceptor_.listen(HttpLimits::connections, error);
  }
  LOCKSTEP_CHECK(!error, "[serve] cannot listen on ", options.host, ":", options.port, " (", error.message(),
                 "); choose another port if this one is in use, else check the host");
  return acceptor_.local_endpoint().port();
}

void HttpServer::run() {
  accept(), tick();
  while (!io.stopped()) {
    try {
      io.run();
    } catch (const std::exception&) {  // out of memory: the affected connection is dropped at its deadline
    }
  }
}

void HttpServer::accept() {
  acceptor_.async_accept([this](ErrorCode error, tcp::socket socket) {
    if (ending) return;
    if (error) {  // most likely out of file descriptors
      if (!waiting.empty()) waiting.begin()->second->drop();
      pause_.expires_after(std::chrono::milliseconds(10));
      return pause_.async_wait([this](ErrorCode) { accept(); });
    }
    accept();
    const auto connection = std::make_shared<Connection>(*this, std::move(socket));
    connections.insert(connection);
    connection->begin_request();
    make_room();
  });
}

void HttpServer::make_room() {
  while (connections.size() > max_connections_ && !waiting.empty()) waiting.begin()->second->drop();
  for (auto one = waiting.begin(); reading > size_t(HttpLimits::reading) && one != waiting.end();) {
    Connection* const connection = (one++)->second;
    if (connection->has_bytes()) connection->drop();
  }
}

void HttpServer::tick() {
  tick_.expires_after(look_every);
  tick_.async_wait([this](ErrorCode) { tick(); });
  if (!ending && options.stop()) {
    ending = true, end_ = in(HttpLimits::end);
    ErrorCode ignored;
    acceptor_.close(ignored);
  }
  const std::vector<std::shared_ptr<Connection>> all(connections.begin(), connections.end());
  for (const auto& connection : all) {
    if (ending && (connection->waits() || Clock::now() > end_)) connection->drop();
    else connection->check();
  }
  if (ending && connections.empty()) io.stop();
}

}  // namespace

void run_http(const HttpOptions& options) {
  HttpServer server(options);
  const int port = server.listen();
  if (options.started) options.started(port);
  server.run();
}

#else

void run_http(const HttpOptions&) {
  fail(
      "[serve] this build has no HTTP: install Boost (Debian and Ubuntu: apt-get install libboost-dev), "
      "then: meson setup --reconfigure build, and build again");
}

#endif

}  // namespace lockstep::serve
