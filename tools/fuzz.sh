#!/usr/bin/env bash
# Runs every fuzz target in turn, FUZZ_SECONDS in all. New inputs stay in build/fuzz/corpus; what
# crashes is left in build/fuzz and belongs, once fixed, in tests/fuzz/corpus/<target>.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/steps.sh

total=${FUZZ_SECONDS:-120}
shopt -s nullglob
targets=(tests/fuzz/*_fuzz.cpp)
[ ${#targets[@]} -gt 0 ] || fail "There is no tests/fuzz/*_fuzz.cpp to run."
seconds=$((total / ${#targets[@]}))
[ "$seconds" -gt 0 ] || seconds=1

for source in "${targets[@]}"; do
  name=$(basename "$source" .cpp)
  corpus=build/fuzz/corpus/$name
  mkdir -p "$corpus"
  folders=("$corpus")
  [ ! -d "tests/fuzz/corpus/$name" ] || folders+=("tests/fuzz/corpus/$name")
  step "$name for $seconds s" "fuzz-$name" "build/fuzz/tests/fuzz/$name" \
    "-max_total_time=$seconds" -timeout=10 -rss_limit_mb=2048 "-artifact_prefix=build/fuzz/" \
    "${folders[@]}"
  tail -n 1 "build/fuzz-$name.log"
done
