// Routes, access control and streaming. See server.h.
#include "extensions/serving/server.h"

#include <arpa/inet.h>

#include <algorithm>
#include <mutex>

#include "extensions/serving/http.h"

namespace lockstep::serve {

namespace {

using data::Json;

constexpr int look = 20;  // ms between checks whether the client is still connected

HttpResponse json_response(const Json& json, int status = 200) { return {.status = status, .body = json.dump()}; }

HttpResponse refused(int status, const std::string& message, const std::string& param = "") {
  const char* const type = status == 401  ? "authentication_error"
                           : status < 500 ? "invalid_request_error"
                                          : "server_error";
  return json_response(error_json(message, type, param), status);
}

/// Runs fn; its exceptions become responses.
HttpResponse guarded(const std::function<HttpResponse()>& fn) {
  try {
    return fn();
  } catch (const BadRequest& error) {
    return refused(error.status, error.what(), error.param);
  } catch (const std::exception& error) { return refused(500, error.what()); }
}

std::string event(const Json& json) { return "data: " + json.dump() + "\n\n"; }

/// True if the keys are equal. The time does not depend on where they differ, so it tells an attacker nothing.
bool same_key(const std::string& a, const std::string& b) {
  unsigned different = a.size() != b.size();
  for (size_t i = 0; i < a.size() && !b.empty(); ++i) different |= unsigned(a[i] ^ b[i % b.size()]);
  return different == 0;
}

/// Decodes percent escapes: "%2F" is a slash.
std::string decoded(std::string_view path) {
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    const auto digit = [&](size_t at) {
      return at < path.size() ? std::string_view("0123456789abcdef").find(char(path[at] | 32)) : path.npos;
    };
    const size_t high = path[i] == '%' ? digit(i + 1) : path.npos, low = digit(i + 2);
    if (high == path.npos || low == path.npos) out += path[i];
    else out += char(high * 16 + low), i += 2;
  }
  return out;
}

/// The host's name in "localhost:8000" or "[::1]:8000".
std::string name_of_host(const std::string& host) {
  const size_t end = host.find(':', host.starts_with('[') ? std::min(host.find(']'), host.size()) : 0);
  std::string name = host.substr(0, end);
  if (name.starts_with('[') && name.ends_with(']')) name = name.substr(1, name.size() - 2);
  return name;
}

bool is_address(const std::string& name) {
  in6_addr any{};
  return inet_pton(AF_INET, name.c_str(), &any) == 1 || inet_pton(AF_INET6, name.c_str(), &any) == 1;
}

class Front {
 public:
  Front(Service& service, const ServerOptions& options) : service_(service), o_(options) {}

  std::optional<HttpResponse> look_at(const HttpRequest& q) const {
    if (auto stranger = refusal_of_page(q)) return stranger;
    const bool open = o_.api_key.empty() || q.path == "/health";
    if (q.method == "OPTIONS" && !o_.allow_origin.empty()) {  // a preflight request
      return HttpResponse{.status = 204,
                          .headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                                      {"Access-Control-Allow-Headers", q.header("Access-Control-Request-Headers")},
                                      {"Access-Control-Max-Age", "600"}}};
    }
    if (!open && !same_key(q.header("Authorization"), "Bearer " + o_.api_key))
      return refused(401, "expected the header Authorization: Bearer KEY");
    return q.method == "GET" || q.method == "HEAD" ? page(q) : q.method == "POST" ? refusal_of_post(q) : not_there(q);
  }

  void handle(HttpRequest q, HttpClient& client) const {
    if (q.path == "/tokenize") {
      return client.respond(guarded([&] {
        const std::lock_guard lock(reading_);
        return json_response(service_.tokenize(q.body));
      }));
    }
    std::unique_ptr<Reply> reply;
    HttpResponse response = guarded([&] {
      const std::lock_guard lock(reading_);
      reply = service_.answer(q.path == "/v1/completions" ? Endpoint::completions : Endpoint::chat, q.body);
      q.body = {};
      return HttpResponse{.type = "text/event-stream", .headers = {{"Cache-Control", "no-cache"}}};
    });
    if (!reply) return client.respond(response);
    if (reply->streams()) return stream(*reply, client, response);
    response = guarded([&] {
      while (!reply->ended() && !client.gone()) {
        LOCKSTEP_CHECK(!client.ending(), "the server is shutting down; send the request again later");
        reply->pieces(look);
      }
      return client.gone() ? HttpResponse() : json_response(reply->full());
    });
    client.respond(response);
  }

 private:
  /// Refuses requests that a web page sends through its user's browser: those with a foreign Origin, and those whose
  /// Host is a name that was bound to this machine's address (DNS rebinding).
  std::optional<HttpResponse> refusal_of_page(const HttpRequest& q) const {
    const std::string host = q.header("Host"), name = name_of_host(host), origin = q.header("Origin");
    if (o_.api_key.empty() && !name.empty() && name != "localhost" && name != o_.host && !is_address(name))
      return refused(403,
                     "expected Host localhost or an address, got '" + host.substr(0, 100) + "'; else set an API key");
    const bool own = origin.empty() || origin == "http://" + host || origin == "https://" + host;
    if (own || o_.allow_origin == "*" || origin == o_.allow_origin) return std::nullopt;
    return refused(403, "origin '" + origin.substr(0, 100) + "' is not allowed: start the server with --allow-origin");
  }
  static HttpResponse not_there(const HttpRequest& q) {
    return refused(404, "expected a request such as POST /v1/completions or GET /v1/models, got " +
                            q.method.substr(0, 100) + " " + q.path.substr(0, 100));
  }
  HttpResponse page(const HttpRequest& q) const {
    const std::string models = "/v1/models";
    if (q.path == "/health") return json_response(Json::Object{{"status", "ok"}});
    if (q.path == "/metrics") return {.body = service_.metrics(), .type = "text/plain; version=0.0.4"};
    if (q.path == models) return json_response(service_.models());
    if (!q.path.starts_with(models + "/")) return not_there(q);
    return guarded([&] { return json_response(service_.model(decoded(q.path.substr(models.size() + 1)))); });
  }
  static std::optional<HttpResponse> refusal_of_post(const HttpRequest& q) {
    if (q.path != "/v1/completions" && q.path != "/v1/chat/completions" && q.path != "/tokenize") return not_there(q);
    std::string type = q.header("Content-Type");
    type = type.substr(0, type.find_first_of("; \t"));
    std::ranges::transform(type, type.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
    if (type == "application/json") return std::nullopt;
    return refused(415, "expected Content-Type: application/json, got '" + type.substr(0, 100) + "'");
  }
  static void stream(Reply& reply, HttpClient& client, const HttpResponse& head) {
    client.begin(head);
    try {
      while (!reply.ended()) {
        LOCKSTEP_CHECK(!client.ending(), "the server is shutting down; send the request again later");
        std::string out;
        for (const Json& piece : reply.pieces(look)) out += event(piece);
        if (client.gone() || !client.write(out)) return;
      }
      client.write("data: [DONE]\n\n");
    } catch (const std::exception& error) { client.write(event(error_json(error.what(), "server_error"))); }
    client.finish();
  }

  Service& service_;
  mutable std::mutex reading_;  // JSON takes much more memory than its text: parse one request at a time
  const ServerOptions& o_;
};

}  // namespace

void run_server(Service& service, const ServerOptions& options) {
  const Front front(service, options);
  HttpOptions http{.host = options.host,
                   .port = options.port,
                   .loopback_only = options.api_key.empty(),
                   .error = [](int status, const std::string& message) { return refused(status, message); },
                   .look = [&](const HttpRequest& q) { return front.look_at(q); },
                   .handle = [&](HttpRequest q, HttpClient& client) { front.handle(std::move(q), client); },
                   .stop = options.stop,
                   .started = options.started};
  if (!options.allow_origin.empty())
    http.headers = {{"Access-Control-Allow-Origin", options.allow_origin}, {"Vary", "Origin"}};
  run_http(http);
}

}  // namespace lockstep::serve
