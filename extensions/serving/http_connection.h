#pragma once
// A client's connection. Included by http.cpp only; these two files are the only ones that use Boost.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "base/check.h"
#include "base/classic_text.h"
#include "extensions/serving/http.h"

namespace lockstep::serve {

namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using ErrorCode = boost::system::error_code;

/// A request body whose memory grows as data arrive. (string_body would at once reserve as much memory as the client
/// announces in Content-Length.)
using GrowingBody = http::basic_dynamic_body<boost::beast::flat_buffer>;

/// The first bytes of every response. look_at_client() sends them early, to test whether the client still listens.
constexpr std::string_view all_begin_so = "HTTP/1.1 ";
constexpr size_t piece = 4096, max_pending = 256 << 10;
constexpr auto look_every = std::chrono::milliseconds(50);
constexpr auto never = Clock::time_point::max();
Clock::time_point in(int ms) { return Clock::now() + std::chrono::milliseconds(ms); }

std::string text(const auto& view) { return {view.data(), view.size()}; }

class Connection;

/// Accepts connections, and enforces the limits.
class HttpServer {
 public:
  explicit HttpServer(const HttpOptions& options);
  int listen();
  void run();
  void make_room();
  /// Updates `reading`, the bytes of all incomplete requests, when the bytes of one change from `counted` to `now`.
  void count(size_t& counted, size_t now) { reading += now - counted, counted = now; }

  const HttpOptions& options;
  asio::io_context io{1};
  std::set<std::shared_ptr<Connection>> connections;
  // Connections that wait for a request or the rest of one; the connection that has waited longest comes first.
  std::map<uint64_t, Connection*> waiting;
  uint64_t numbers = 0;
  size_t reading = 0, bodies = 0;  // total bytes: of incomplete requests, and of requests being answered
  int answers = 0;
  std::atomic<bool> ending = false;
  // The last public member, so that it is destroyed before the members above, which its threads use.
  asio::thread_pool threads{HttpLimits::answers};

 private:
  void accept();
  void tick();
  tcp::acceptor acceptor_{io};
  asio::steady_timer tick_{io}, pause_{io};
  Clock::time_point end_ = never;
  size_t max_connections_ = HttpLimits::connections;
};

/// One client. Except for HttpClient's functions, everything runs on the network thread.
class Connection : public HttpClient, public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer& server, tcp::socket socket) : server_(server), socket_(std::move(socket)) {
    ErrorCode ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.set_option(asio::socket_base::send_buffer_size(int(max_pending)), ignored);
  }
  /// Waits for the next request.
  void begin_request() {
    parser_.emplace();
    parser_->header_limit(HttpLimits::headers), parser_->body_limit(HttpLimits::body);
    request_ = {}, checked_ = closing_ = head_only_ = begun_ = probed_ = over_ = late_ = false;
    received_ = buffer_.size(), number_ = ++server_.numbers;
    server_.waiting[number_] = this;
    buffer_.shrink_to_fit();
    deadline_ = in(buffer_.size() > 0 ? HttpLimits::request : HttpLimits::idle);
    parse();
  }
  /// Called regularly: drops the client after its deadline, and detects a disconnected one.
  void check() {
    if (working_) look_at_client();
    if (Clock::now() < deadline_) return;
    if (std::exchange(late_, true)) return drop();
    ErrorCode ignored;
    socket_.cancel(ignored);
  }
  bool waits() const { return number_ != 0; }      ///< true while waiting for a request, or the rest of one
  bool has_bytes() const { return counted_ > 0; }  ///< true if a part of a request has arrived
  /// Closes the connection.
  void drop() {
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
    }
    room_.notify_all();
    stop_reading();
    if (!working_) release();
    ErrorCode ignored;
    socket_.close(ignored);
    server_.connections.erase(shared_from_this());
  }

  void respond(const HttpResponse& r) override {
    push(head(r, str("Content-Length: ", r.body.size(), "\r\n")) + (head_only_ ? "" : r.body), true);
  }
  void begin(const HttpResponse& r) override {
    if (!chunked_) closing_ = true;  // the end of the connection marks the end of the body
    push(head(r, chunked_ ? "Transfer-Encoding: chunked\r\n" : ""), false);
  }
  bool write(std::string_view more) override {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return gone_ || pending_.size() < max_pending; });
    if (gone_ || more.empty()) return !gone_;
    if (chunked_) (pending_ += format("%zx\r\n", more.size())).append(more) += "\r\n";
    else pending_ += more;
    lock.unlock();
    wake();
    return true;
  }
  void finish() override { push(chunked_ ? "0\r\n\r\n" : "", true); }
  bool gone() const override { return gone_; }
  bool ending() const override { return server_.ending; }

 private:
  void parse() {
    if (late_) return drop();
    ErrorCode error;
    while (buffer_.size() > 0 && !parser_->is_done() && !error) {
      parser_->eager(checked_);
      const size_t used = parser_->put(buffer_.data(), error);
      buffer_.consume(used);
      if (!error && parser_->is_header_done() && !checked_ && !look()) return;
      if (used == 0) break;
    }
    if (error == http::error::need_more) error = {};
    const std::string too_long = str("expected a body of at most ", HttpLimits::body >> 20, " MiB");
    if (error == http::error::header_limit || (!checked_ && buffer_.size() > size_t(HttpLimits::headers)))
      return refuse(431, str("expected at most ", HttpLimits::headers >> 10, " KiB of headers; send fewer"));
    if (error == http::error::body_limit || received_ > size_t(HttpLimits::received)) return refuse(413, too_long);
    if (buffer_.size() > size_t(HttpLimits::headers))
      return refuse(413, "expected chunk-size lines of at most 64 KiB; send shorter ones");
    if (error) return refuse(400, "expected a request of HTTP/1.1: " + error.message());
    if (parser_->is_done()) return hand_over();
    server_.count(counted_, buffer_.capacity() + parser_->get().body().capacity());
    read();
    server_.make_room();  // may drop this connection, too
  }
  void read() {
    socket_.async_read_some(buffer_.prepare(piece), [self = shared_from_this(), this](ErrorCode error, size_t size) {
      if (!waits()) return;  // dropped
      if (late_ && received_ > 0)
        return refuse(408, str("expected the whole request within ", HttpLimits::request / 1000, " s; send it again"));
      if (error) return drop();
      if (received_ == 0) deadline_ = in(HttpLimits::request);
      buffer_.commit(size), received_ += size;
      parse();
    });
  }
  void stop_reading() {
    server_.waiting.erase(std::exchange(number_, 0));
    server_.count(counted_, 0);
  }
  /// Called when the headers are complete. If the body is not needed, responds and returns false.
  bool look() {
    checked_ = true;
    const auto& message = parser_->get();
    request_.method = text(message.method_string());
    request_.path = text(message.target().substr(0, message.target().find('?')));
    for (const auto& field : message) request_.headers.emplace_back(text(field.name_string()), text(field.value()));
    chunked_ = message.version() == 11, keep_alive_ = message.keep_alive(), head_only_ = request_.method == "HEAD";
    const std::string encoding = request_.header("Content-Encoding"), transfer = request_.header("Transfer-Encoding"),
                      expects = request_.header("Expect");
    const bool empty = parser_->is_done(), plain = encoding.empty() || encoding == "identity";
    if (message.version() != 11 && message.version() != 10) return refuse(505, "expected HTTP/1.1"), false;
    const size_t hosts = message.count(http::field::host);  // optional in HTTP/1.0
    if (hosts > 1 || (hosts == 0 && message.version() == 11))
      return refuse(400, "expected exactly one Host header"), false;
    if (!plain || !(transfer.empty() || boost::beast::iequals(transfer, "chunked")))
      return refuse(415, "expected a body without encoding, got Content-Encoding or Transfer-Encoding '" +
                             (plain ? transfer : encoding).substr(0, 100) + "'"),
             false;
    if (!expects.empty() && !boost::beast::iequals(expects, "100-continue"))
      return refuse(417, "expected no Expect header, or Expect: 100-continue"), false;
    std::optional<HttpResponse> response = server_.options.look(request_);
    if (!response && empty && transfer.empty() && request_.header("Content-Length").empty())
      response = server_.options.error(411, "expected a body, with Content-Length or Transfer-Encoding: chunked");
    if (response) {
      stop_reading();
      closing_ = !empty;
      respond(*response);
      return false;
    }
    if (!expects.empty() && !empty && buffer_.size() == 0) send_now("HTTP/1.1 100 Continue\r\n\r\n");
    return true;
  }
  void refuse(int status, const std::string& message) {
    stop_reading();
    late_ = false, closing_ = true;
    respond(server_.options.error(status, message));
  }
  void hand_over() {
    request_.body = boost::beast::buffers_to_string(parser_->get().body().data());
    parser_.reset();
    stop_reading();
    deadline_ = never;
    const size_t size = request_.body.size();
    if (server_.answers == HttpLimits::answers || server_.bodies + size > size_t(HttpLimits::bodies))
      return respond(server_.options.error(503, str("send it later: at most ", HttpLimits::answers,
                                                    " requests at a time, of ", HttpLimits::bodies >> 20, " MiB")));
    ++server_.answers, server_.bodies += size, held_ = size, working_ = true;
    asio::post(server_.threads, [self = shared_from_this(), this] {
      try {
        server_.options.handle(std::move(request_), *this);
      } catch (const std::exception& error) {
        if (!begun_) respond(server_.options.error(500, error.what()));
      }
      asio::post(server_.io, [self, this] {
        working_ = false;
        if (!over_ || gone_) drop();
        else if (done_) next();
      });
    });
  }
  /// Subtracts this request from the server's numbers of running answers and of body bytes. Called when the answer is
  /// sent or the client has gone.
  void release() {
    if (!held_) return;
    --server_.answers, server_.bodies -= *held_;
    held_.reset();
  }
  /// Detects a client that has closed its socket. A client that has only shut down its sending side looks the same.
  /// Sending the first bytes of the answer shows the difference, because a closed socket reports an error.
  void look_at_client() {
    pollfd wanted{socket_.native_handle(), POLLRDHUP, 0};
    if (poll(&wanted, 1, 0) <= 0) return;
    if (wanted.revents & (POLLERR | POLLHUP)) return drop();
    if (begun_ || probed_) return;
    probed_ = send_now(all_begin_so);
  }
  bool send_now(std::string_view now) {
    return ::send(socket_.native_handle(), now.data(), now.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == ssize_t(now.size());
  }

  std::string head(const HttpResponse& r, const std::string& length) const {
    std::string out = str(all_begin_so, r.status, " ", text(http::obsolete_reason(http::status(r.status))), "\r\n");
    if (r.status != 204) out += str("Content-Type: ", r.type, "\r\n", length);
    for (const HttpHeaders* headers : {&server_.options.headers, &r.headers})
      for (const auto& [name, value] : *headers) out += str(name, ": ", value, "\r\n");
    return out + str("Connection: ", keep_alive_ && !closing_ && !ending() ? "keep-alive" : "close", "\r\n\r\n");
  }
  void push(const std::string& more, bool last) {
    {
      const std::lock_guard lock(mutex_);
      pending_ += more, begun_ = true, over_ = last;
    }
    wake();
  }
  void wake() {
    asio::post(server_.io, [self = shared_from_this(), this] {
      if (!writing_ && socket_.is_open()) flush();
    });
  }
  void flush() {
    bool last = false;
    if (sent_.size() == sent_to_) {
      const std::lock_guard lock(mutex_);
      sent_.clear(), sent_.swap(pending_), sent_to_ = 0, last = over_;
      if (std::exchange(probed_, probed_ && sent_.empty()) && !sent_.empty()) sent_to_ = all_begin_so.size();
    }
    room_.notify_all();
    if (sent_.empty()) {
      if (last && !std::exchange(done_, true) && !working_) next();
      return;
    }
    const size_t count = std::min(sent_.size() - sent_to_, max_pending);
    writing_ = true, deadline_ = in(HttpLimits::write);
    asio::async_write(socket_, asio::buffer(sent_.data() + sent_to_, count),
                      [self = shared_from_this(), this, count](ErrorCode error, size_t) {
                        writing_ = false, sent_to_ += count;
                        if (error) return drop();
                        deadline_ = never;
                        flush();
                      });
  }
  /// Called when the answer is sent: waits for the next request, or closes.
  void next() {
    if (!socket_.is_open()) return;
    done_ = false;
    release();
    if (keep_alive_ && !closing_ && !server_.ending) return begin_request();
    ErrorCode ignored;
    // Read and drop further data: closing with unread data would reset the connection, and the answer could be lost.
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    deadline_ = in(HttpLimits::linger);
    received_ = 0;
    buffer_.clear();
    swallow();
  }
  void swallow() {
    socket_.async_read_some(buffer_.prepare(piece), [self = shared_from_this(), this](ErrorCode error, size_t size) {
      received_ += size;
      if (error || received_ > size_t(HttpLimits::received)) drop();
      else swallow();
    });
  }

  HttpServer& server_;
  tcp::socket socket_;
  boost::beast::flat_buffer buffer_{HttpLimits::headers + 2 * piece};
  std::optional<http::request_parser<GrowingBody>> parser_;
  HttpRequest request_;
  Clock::time_point deadline_ = never;
  uint64_t number_ = 0;  // key in server_.waiting
  size_t received_ = 0, counted_ = 0;
  bool checked_ = false, closing_ = false, keep_alive_ = true, chunked_ = true, head_only_ = false;
  bool late_ = false, working_ = false, writing_ = false, done_ = false, probed_ = false;
  std::optional<size_t> held_;  // bytes of the request that is being answered
  std::string sent_;            // data to be sent, from sent_to_ on
  size_t sent_to_ = 0;

  std::mutex mutex_;  // guards the members below, which two threads use
  std::condition_variable room_;
  std::string pending_;
  bool over_ = false;
  std::atomic<bool> gone_ = false, begun_ = false;
};

}  // namespace

}  // namespace lockstep::serve
