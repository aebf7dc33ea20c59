#!/usr/bin/env bash
# Runs clang-tidy over the torch-free layers, without the files for macOS. A file that passed is
# checked again only when it, a header of these layers or .clang-tidy has changed.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/steps.sh

folders=(src/base src/wire src/transport)
commands=build/core/compile_commands.json
if [ ! -e "$commands" ] || [ CMakePresets.json -nt "$commands" ]; then
  step "configure core" configure-core cmake --preset core
fi

stamp_of() {
  echo "build/tidy/${1//\//.}"
}

mkdir -p build/tidy
newest_header=$(find "${folders[@]}" -name '*.h' -printf '%T@ %p\n' | sort -n | tail -n 1 |
  cut -d ' ' -f 2-)
files=()
for file in $(find "${folders[@]}" -name '*.cpp' ! -name '*_macos.cpp' | sort); do
  stamp=$(stamp_of "$file")
  if [ ! -e "$stamp" ] || [ "$file" -nt "$stamp" ] || [ "$newest_header" -nt "$stamp" ] ||
    [ .clang-tidy -nt "$stamp" ]; then
    files+=("$file")
  fi
done
[ ${#files[@]} -gt 0 ] || exit 0

check() {
  touch "$2.new"  # from before the file is read: a change made meanwhile is newer
  clang-tidy-14 -p build/core --quiet "$1" 2>"$2.log" || {
    grep -v 'warnings generated' "$2.log"
    return 1
  }
  mv "$2.new" "$2"
}
export -f check
for file in "${files[@]}"; do
  printf '%s\0%s\0' "$file" "$(stamp_of "$file")"
done | xargs -0 -P "${JOBS:-$(nproc)}" -n 2 bash -c 'check "$@"' check ||
  fail "clang-tidy has found something in ${folders[*]}."
