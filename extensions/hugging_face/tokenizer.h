#pragma once
// Tokenizers in Hugging Face folders: loading, comparing, copying. tokenizers.md lists the supported files.
#include <memory>
#include <string>

#include "data/tokenizer.h"

namespace lockstep::data {

/// Loads a folder with tokenizer.json, or with vocab.json and merges.txt. Also reads added tokens from
/// tokenizer_config.json and added_tokens.json. The files determine the kind of tokenizer. An unsupported feature in a
/// file is an Error that names the feature. If `folder` is "": a ByteTokenizer.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder);
/// True if the folder has a tokenizer.json or vocab.json.
bool has_tokenizer(const std::string& folder);
/// A string that identifies a tokenizer: "bytes", or the size and checksum of each of its files, and of the list of
/// tokens that are defined in other files.
std::string tokenizer_identity(const std::string& folder);
/// Copies the tokenizer's files and chat templates from one folder to another, and removes the files of an
/// earlier tokenizer.
void copy_tokenizer(const std::string& from, const std::string& to);

}  // namespace lockstep::data
