#!/usr/bin/env bash
# Unpacks packages of another Debian release into a folder, without installing anything. The names are exact: what they depend on
# is not fetched. apt checks the release's signature and the checksum of every file.
#   scripts/unpack_debian.sh SUITE FOLDER PACKAGE...          SUITE: such as trixie
# The archive is $DEBIAN_MIRROR, or the one in this system's apt sources.
set -euo pipefail
[[ $# -ge 3 ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
suite=$1 folder=$2
shift 2
keys=/usr/share/keyrings/debian-archive-keyring.gpg
for tool in apt-get dpkg-deb; do command -v $tool >/dev/null || { echo "$tool is needed, from Debian or Ubuntu" >&2; exit 1; }; done
[[ -r $keys ]] || { echo "the keys of Debian's archive are missing: apt-get install debian-archive-keyring" >&2; exit 1; }
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -E '/debian/?$' | head -1 || true)}
[[ -n $mirror ]] || { echo "apt's sources here name no archive of Debian: set DEBIAN_MIRROR" >&2; exit 1; }

# A separate apt with its own sources, lists and cache, which does not touch the system's.
mkdir -p "$folder"
apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
mkdir -p "$apt"/{etc/preferences.d,etc/parts,state/lists/partial,cache/archives/partial,debs}
touch "$apt/etc/status"
echo "deb [signed-by=$keys] $mirror $suite main" >"$apt/etc/sources.list"
cat >"$apt/apt.conf" <<END
Dir::Etc "$apt/etc";
Dir::Etc::parts "parts";
Dir::Etc::sourceparts "parts";
Dir::State "$apt/state";
Dir::State::status "$apt/etc/status";
Dir::Cache "$apt/cache";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::http::Timeout "20";
APT::Update::Error-Mode "any";
END
if [[ $EUID -eq 0 ]]; then echo 'APT::Sandbox::User "root";' >>"$apt/apt.conf"; fi
export APT_CONFIG=$apt/apt.conf
timeout 120 apt-get update -qq >"$apt/log" 2>&1 || { tail -3 "$apt/log" >&2; echo "the archive cannot be reached: $mirror $suite" >&2; exit 1; }
(cd "$apt/debs" && timeout 300 apt-get download -qq "$@") >"$apt/log" 2>&1 || { tail -3 "$apt/log" >&2; echo "these packages could not be fetched from $mirror $suite: $*" >&2; exit 1; }
for package in "$apt"/debs/*.deb; do dpkg-deb -x "$package" "$folder"; done
