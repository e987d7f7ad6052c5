// Defines the source folder and commit of this build. See source_folder.h.
#include "apps/source_folder.h"

#include "apps/version.h"

namespace apps {

const char* const source_folder = LOCKSTEP_SOURCE_DIR;
const char* const revision = LOCKSTEP_REVISION;

}  // namespace apps
