# Sourced by the scripts that make calls: short lines on the terminal, everything in build/*.log.

# step "[1/5] what" name command...: the command's output goes to build/<name>.log; if it fails its
# end is shown.
step() {
  local title=$1 log=build/$2.log
  shift 2
  mkdir -p build
  echo "$title"
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 40 "$log" >&2
    fail "${title#\[*\] } failed; all of its output is in $log."
  fi
}

# The same for a ninja build: a line for each tenth of the way, and the compiler's messages.
build_step() {
  local title=$1 log=build/$2.log
  shift 2
  mkdir -p build
  echo "$title"
  if ! "$@" 2>&1 </dev/null | tee "$log" | awk '
      match($0, /^\[[0-9]+\/[0-9]+\]/) {
        split(substr($0, 2, RLENGTH - 2), n, "/")
        tenth = int(10 * n[1] / n[2])
        if (tenth > shown && n[2] > 10) {
          printf "      %d of %d\n", n[1], n[2]
          fflush()
          shown = tenth
        }
      }'; then
    grep -E -A 12 'error:|FAILED|undefined reference|Error' "$log" | head -n 60 >&2 || true
    fail "${title#\[*\] } failed; all of its output is in $log."
  fi
}

fail() {
  echo "$*" >&2
  exit 1
}
