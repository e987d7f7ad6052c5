// The HTTP server without a model: requests that are rejected while they are read, clients that disconnect or stall,
// and shutdown.
#include "extensions/serving/http.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::serve;

namespace {

/// A server that makes N pieces of an answer, one per millisecond, where N is the number in the request's body. If the
/// path is /stream, it sends the pieces one by one, else all together.
struct HttpToy {
  std::atomic<int> port = 0, left = 0;  // left: answers whose client disconnected early
  std::atomic<bool> stop = false;
  std::thread thread;

  HttpToy() {
    thread = std::thread([this] {
      HttpOptions o{.host = "127.0.0.1",
                    .error =
                        [](int status, const std::string& message) {
                          return HttpResponse{status, message};
                        },
                    .look = [](const HttpRequest& q) -> std::optional<HttpResponse> {
                      if (q.method == "POST") return std::nullopt;
                      return HttpResponse{.body = q.path, .headers = {{"X-Said", q.header("x-say")}}};
                    },
                    .handle = [this](HttpRequest q, HttpClient& c) { answer(q, c); },
                    .stop = [this] { return stop.load(); },
                    .started = [this](int at) { port = at; }};
      run_http(o);
    });
    while (port == 0) std::this_thread::yield();
  }
  ~HttpToy() {
    const auto begin = std::chrono::steady_clock::now();
    stop = true;
    thread.join();
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
  }
  void answer(const HttpRequest& q, HttpClient& c) {
    if (q.path == "/throw") fail("thrown");
    const bool stream = q.path == "/stream";
    if (stream) c.begin({.type = "text/event-stream"});
    std::string all;
    for (int i = 0; i < std::atoi(q.body.c_str()); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (c.gone() || c.ending() || (stream && !c.write("piece "))) return void(++left);
      all += "piece ";
    }
    if (stream) c.finish();
    else c.respond({.body = all});
  }
  int connect() const {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{.sin_family = AF_INET, .sin_port = htons(uint16_t(port.load())), .sin_addr = {}, .sin_zero = {}};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
    return fd;
  }
};

void say(int fd, const std::string& text) { send(fd, text.data(), text.size(), MSG_NOSIGNAL); }

/// Returns everything that arrives until the other side closes the connection.
std::string rest(int fd) {
  std::string out(1 << 16, 0), all;
  for (ssize_t got = 0; (got = recv(fd, out.data(), out.size(), 0)) > 0;) all.append(out, 0, size_t(got));
  close(fd);
  return all;
}

std::string post(const std::string& path, const std::string& body, const std::string& more = "Connection: close\r\n") {
  return str("POST ", path, " HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(), "\r\n", more, "\r\n", body);
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++n;
  return n;
}

}  // namespace

TEST_CASE("http: requests that are answered, and requests that are rejected while they are read") {
  HttpToy toy;
  const std::string chunked = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", kib(1024, 'x'),
                    get = "GET /a?b HTTP/1.1\r\nHost: x\r\n", close_it = "Connection: close\r\n\r\n";
  const struct {
    std::string sent, again;  // again: repeated until the server closes the connection
    std::string wanted;
  } rows[] = {{get + close_it, "", "HTTP/1.1 200 OK\r\n"},
              {get + "X-Say: hi\r\n" + close_it, "", "X-Said: hi\r\n"},
              {get + "\r\n" + get + close_it, "", "/aHTTP/1.1 200 OK\r\n"},
              {"HEAD /a HTTP/1.1\r\nHost: x\r\n" + close_it, "", "Content-Length: 2\r\n"},
              {post("/", "2"), "", "\r\n\r\npiece piece "},
              {post("/stream", "2"), "", "\r\n\r\n6\r\npiece \r\n6\r\npiece \r\n0\r\n\r\n"},
              {chunked + "1;a=b\r\n2\r\n0\r\n\r\n" + get + close_it, "", "piece piece HTTP/1.1 200"},
              {"POST / HTTP/1.0\r\nContent-Length: 1\r\n\r\n1", "", "HTTP/1.1 200 OK\r\n"},
              {post("/throw", ""), "", "HTTP/1.1 500 "},
              {"GET / HTTP/1.1\r\n" + close_it, "", "HTTP/1.1 400 "},
              {get + "Host: y\r\n" + close_it, "", "HTTP/1.1 400 "},
              {"GET / HTTP/4.0\r\nHost: x\r\n\r\n", "", "HTTP/1.1 400 "},
              {"nonsense\r\n\r\n", "", "HTTP/1.1 400 "},
              {get, "a: b\r\n", "HTTP/1.1 431 "},
              {get + "a: ", kib, "HTTP/1.1 431 "},
              {"GET /", kib, "HTTP/1.1 431 "},
              {"POST / HTTP/1.0\r\n\r\n", "", "HTTP/1.1 411 "},
              {post("/", "1", "Content-Encoding: br\r\n"), "", "HTTP/1.1 415 "},
              {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "", "HTTP/1.1 415 "},
              {post("/", "1", "Expect: x\r\n"), "", "HTTP/1.1 417 "},
              {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n\r\n", "", "HTTP/1.1 413 "},
              {chunked, "400\r\n" + kib + "\r\n", "HTTP/1.1 413 "},
              {chunked + "1;", kib, "HTTP/1.1 413 "}};
  for (const auto& row : rows) {
    CAPTURE(row.sent.substr(0, 200));
    const int fd = toy.connect();
    say(fd, row.sent);
    for (int i = 0; i < (row.again.empty() ? 0 : row.again.size() < 100 ? 20'000 : 1100); ++i) say(fd, row.again);
    const std::string said = rest(fd);
    CAPTURE(said.substr(0, 500));
    CHECK(contains(said, row.wanted));
  }
}

TEST_CASE("http: a client that disconnected is not waited for; one that only closed its sending side is answered") {
  HttpToy toy;
  const int stays = toy.connect();
  say(stays, post("/stream", "1500"));
  for (const char* path : {"/", "/stream"}) {
    const int half = toy.connect();
    say(half, post(path, "300"));
    shutdown(half, SHUT_WR);
    const std::string said = rest(half);
    CHECK(said.starts_with("HTTP/1.1 200 OK\r\n"));
    CHECK(count(said, "piece ") == 300);
  }
  for (const char* path : {"/", "/stream"}) {
    const int before = toy.left, gone = toy.connect();
    say(gone, post(path, "60000"));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    close(gone);
    for (int i = 0; i < 500 && toy.left == before; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(toy.left == before + 1);
  }
  CHECK(count(rest(stays), "piece ") == 1500);
}

TEST_CASE("http: many at a time, one too many, and an end that nobody keeps up") {
  HttpToy toy;
  std::vector<int> idle, busy;
  for (int i = 0; i < 100; ++i) idle.push_back(toy.connect());
  for (int i = 0; i < HttpLimits::answers; ++i) {
    busy.push_back(toy.connect());
    say(busy.back(), post(i % 2 ? "/stream" : "/", "60000"));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const int late = toy.connect(), quick = toy.connect();
  say(late, post("/", "1"));
  CHECK(rest(late).starts_with("HTTP/1.1 503 "));
  say(quick, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  CHECK(rest(quick).starts_with("HTTP/1.1 200 "));
  toy.stop = true;
  for (const auto* all : {&idle, &busy})
    for (const int fd : *all) rest(fd);
}

TEST_CASE("http: addresses to listen on") {
  const auto listening = [](const char* host, bool loopback_only) {
    return message([&] { run_http({.host = host, .loopback_only = loopback_only, .stop = [] { return true; }}); });
  };
  CHECK(contains(listening("0.0.0.0", true), "expected an API key to listen at 0.0.0.0, which others can reach"));
  CHECK(contains(listening("::ffff:0.0.0.0", true), "expected an API key"));
  for (const char* host : {"127.0.0.1", "localhost", "127.1.2.3"}) CHECK(listening(host, true) == "(no error)");
  CHECK(listening("0.0.0.0", false) == "(no error)");
}
