#pragma once
// The commands of the extension launcher.
#include "apps/commands.h"

namespace apps {

/// run: starts a program on many ranks. The program begins at the first word that is not an option, or after --.
void add_run_command(CLI::App& app, Shared& shared);
/// verify: runs one training under several parallel plans and compares the parameters bit for bit.
void add_verify_command(CLI::App& app, Shared& shared);

}  // namespace apps
