// `gpt serve`: answers requests in the form of OpenAI's completions and chats, many at once. It is a program of its
// own, which gpt execs, so that training ranks need not load the HTTP libraries.
#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/environment.h"
#include "data/files.h"
#include "extensions/serving/server.h"
#include "train/cli.h"
#include "train/interrupt.h"
#include "train/language.h"
#include "train/option_group.h"
#include "train/options.h"

using namespace lockstep;
using namespace lockstep::train;

namespace {

struct ServeOptions : ModelOptions {
  std::string name, chat_template, key_file;
  serve::ServerOptions server;
  serve::BatcherOptions batcher;
  bool print_steps = false;
};

std::optional<serve::ChatTemplate> chat_of(const ServeOptions& o, const LanguageModel& m) {
  if (o.chat_template == "none") return std::nullopt;
  if (!o.chat_template.empty()) return as_usage([&] { return serve::template_by_name(o.chat_template); });
  return m.folder.empty() ? std::nullopt : serve::template_of_folder(m.folder);
}

/// The API key: from the command line (which other users of the machine can read), a file, or the environment.
std::string key_of(const ServeOptions& o) {
  std::string key = o.server.api_key;
  if (!o.key_file.empty()) {
    key = data::read_file(o.key_file, 4096);
    while (key.ends_with('\n') || key.ends_with('\r')) key.pop_back();
    LOCKSTEP_CHECK(!key.empty(), "[serve] --api-key-file ", o.key_file, ": expected a key, got an empty file");
  } else if (const auto set = environment("LOCKSTEP_API_KEY"); set && key.empty()) {
    key = *set;
  }
  for (const char c : key)
    LOCKSTEP_CHECK(
        c > ' ' && c < 127,
        "[serve] expected a key of ASCII letters, digits and signs, without spaces, got another character; make "
        "another key");
  return key;
}

void serve_model(ServeOptions& o, const LanguageModel& m) {
  const auto tokenizer = m.tokenizer();
  serve::ServiceOptions s{.name = o.name, .chat = chat_of(o, m), .batcher = o.batcher};
  if (s.name.empty()) s.name = std::filesystem::path(o.model).lexically_normal().filename().string();
  if (s.name.empty()) s.name = std::filesystem::absolute(o.model).parent_path().filename().string();
  s.eos = m.ends;
  // The model's folder may list end-of-text ids that are not in the model's vocabulary: ignore them.
  std::erase_if(s.eos, [&](int64_t id) { return id >= m.model->o.vocab; });
  if (const auto eos = tokenizer->eos(); s.eos.empty() && eos) s.eos = {*eos};
  if (o.print_steps)
    s.batcher.on_step = [](const serve::SchedulerState&, const serve::BatchStep& step) {
      if (!step.work.empty()) fmt::print("{}\n", serve::to_string(step));
    };
  const Interrupt interrupt;
  serve::Service service(*m.model, *tokenizer, s);
  o.server.stop = [] { return Interrupt::requested(); };
  o.server.started = [&](int port) {
    fmt::print("{} at http://{}:{}/v1 (Ctrl-C ends it)\n", s.name, o.server.host, port);
    std::fflush(stdout);
  };
  serve::run_server(service, o.server);
  fmt::print("ended\n");
  std::fflush(stdout);
  std::thread([] {  // The model may still compute a step that nobody needs: exit after 2 seconds.
    std::this_thread::sleep_for(std::chrono::seconds(2));
    std::_Exit(0);
  })
      .detach();
}

}  // namespace

int main(int argc, char** argv) {
  ServeOptions o;
  CLI::App app("answer completions and chats over HTTP, many at a time", "gpt serve");
  add_model_options(app, o);
  const OptionGroup add(app), limits(app, "Limits");
  add("--host", o.server.host, "address to listen at");
  add("--port", o.server.port, "port to listen at (0: any)", integer(0, 65535))->capture_default_str();
  add("--name", o.name, "the model's name in requests (default: its folder's)");
  add("--template", o.chat_template, "template of chats: plain, chatml, llama2, llama3, none (default: the folder's)",
      one_of({"plain", "chatml", "llama2", "llama3", "none"}));
  auto* key = add("--api-key", o.server.api_key, "key required of requests: Authorization: Bearer KEY");
  add("--api-key-file", o.key_file, "file whose only line is that key (default: LOCKSTEP_API_KEY)")->excludes(key);
  add("--allow-origin", o.server.allow_origin,
      "origin allowed to call from a browser, such as http://localhost:3000; *: all (default: none)",
      [](const std::string& text) -> std::string {
        const size_t host = text.find("://");  // no path may follow the host
        const bool one = host != text.npos && text.find_first_of("/*, \t\r\n", host + 3) == text.npos;
        return one || text == "*" ? "" : "expected * or SCHEME://HOST[:PORT], got '" + text + "'";
      });
  limits("--blocks", o.batcher.blocks,
         "blocks of 32 tokens in the KV cache (0: for 8 texts as long as the context, 4 GiB at most)",
         integer(0, 1 << 26))
      ->capture_default_str();
  limits("--rows", o.batcher.limits.rows, "tokens that a step computes", integer(1, 1 << 16));
  limits("--sequences", o.batcher.limits.sequences, "sequences that run at once", integer(1, 4096));
  add("--print-steps", o.print_steps, "print what each step computes");
  app.callback([&] {
    o.server.api_key = key_of(o);
    use_language_model(o, "serve", [&](const LanguageModel& m) { serve_model(o, m); });
  });
  return run_cli(app, argc, argv);
}
