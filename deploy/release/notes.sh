#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints what CHANGELOG.md says of a release: notes.sh v1.0.0. It fails if that is nothing. Links are made for a reader
# outside of the repository.
set -euo pipefail
[ $# -eq 1 ] || { echo 'usage: notes.sh VERSION' >&2; exit 2; }
cd "$(dirname "$(realpath "$0")")/../.."
notes=$(awk -v heading="## ${1#v}" '/^## / { inside = $0 == heading; next } inside' CHANGELOG.md |
  sed -E "s|\]\(([A-Za-z][^):]*)\)|](https://github.com/slipstream-proxy/slipstream/blob/$1/\1)|g")
[[ $notes ]] || { echo "notes.sh: CHANGELOG.md has no section '## ${1#v}'" >&2; exit 1; }
printf '%s\n' "$notes"
