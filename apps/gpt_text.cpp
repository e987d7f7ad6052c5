// The tokens of a text, for the commands of gpt.
#include <algorithm>

#include "apps/gpt_commands.h"
#include "apps/source_folder.h"
#include "base/check.h"
#include "data/files.h"
#include "data/text.h"

namespace apps {

using namespace lockstep;

data::Tokens load_tokens(const std::string& path, const data::Tokenizer& tokenizer, const std::string& folder) {
  if (!path.empty() && data::is_token_file(path))
    return data::read_tokens(path, tokenizer, train::tokenizer_identity(folder));
  return tokenizer.encode_tensor(path.empty() ? data::read_sources(apps::source_folder)
                                              : data::read_file(path, int64_t(4) << 30));
}

void check_rows(const data::Tokens& tokens, const data::Tokenizer& tokenizer, int64_t vocab, const std::string& path) {
  if (tokenizer.vocab_size() <= vocab) return;
  int64_t some[1024];
  for (int64_t at = 0; at < tokens.size(); at += 1024) {
    const int64_t* const end = tokens.copy(at, std::min<int64_t>(tokens.size() - at, 1024), some);
    const int64_t* const found = std::find_if(some, some + (end - some), [&](int64_t id) { return id >= vocab; });
    LOCKSTEP_CHECK(found == end, path.empty() ? "the text" : path, ": token ", *found, " (\"",
                   tokenizer.token_bytes(int32_t(*found)), "\") at ", at + (found - some),
                   " has no row in the model, which has ", vocab,
                   " rows; take it out of the text, or give the model a row for each of the tokenizer's ",
                   tokenizer.vocab_size(), " tokens");
  }
}

}  // namespace apps
