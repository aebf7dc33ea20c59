#!/usr/bin/env bash
# fuzz.sh PRESET: runs every fuzz target in turn, FUZZ_SECONDS in all, or FUZZ_RUNS times each.
# FUZZ_SEED makes two runs alike. New inputs stay in build/PRESET/corpus, inputs that crash in
# build/PRESET: add those to tests/fuzz/corpus/<target> once they are fixed.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/steps.sh

preset=${1:-fuzz}
total=${FUZZ_SECONDS:-120}
shopt -s nullglob
targets=("build/$preset/targets"/*_fuzz)
[ ${#targets[@]} -gt 0 ] || fail "There is no fuzz target in build/$preset/targets to run."
seconds=$((total / ${#targets[@]}))
[ "$seconds" -gt 0 ] || seconds=1
limit=-max_total_time=$seconds
[ -z "${FUZZ_RUNS:-}" ] || limit=-runs=$FUZZ_RUNS

for target in "${targets[@]}"; do
  name=$(basename "$target")
  corpus=build/$preset/corpus/$name
  mkdir -p "$corpus"
  folders=("$corpus")
  [ ! -d "tests/fuzz/corpus/$name" ] || folders+=("tests/fuzz/corpus/$name")
  step "$name, ${limit#-}" "$preset-$name" "$target" \
    "$limit" "-seed=${FUZZ_SEED:-0}" -timeout=60 -rss_limit_mb=2048 \
    "-artifact_prefix=build/$preset/" "${folders[@]}"
  tail -n 1 "build/$preset-$name.log"
done
