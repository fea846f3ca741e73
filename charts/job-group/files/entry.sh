#!/bin/sh
# Process 1 of a task's container, in any image with a POSIX shell: waits for the group, then runs setup and run.
# /group/scripts holds what users wrote; /group/state the named pipes to the agent beside this container: news (from
# here), go, end and told (to here). Settings are in GPU_CHARTS_… variables.
set -u
: "${GPU_CHARTS_AGENT=}" "${GPU_CHARTS_LOGS=}" "${GPU_CHARTS_OPTIONAL=}" "${GPU_CHARTS_PARK=}"
: "${GPU_CHARTS_IN_PLACE=}" "${GPU_CHARTS_RECOVER_CODES=}"
group=${GPU_CHARTS_ROOT:-/group}
scripts=$group/scripts
state=$group/state
stopped='' # a SIGTERM came
child=''
errors=0
pause=1
unprepared=1
shell='sh'
if command -v bash >/dev/null; then shell='bash'; fi

say() { echo "[GROUP] node=$GPU_CHARTS_HOST $*"; }

# Wait for process $1 (then $child) although signals come meanwhile; its exit code is in $code.
wait_for() {
  child=$1
  while :; do
    signalled=''
    wait "$1"
    code=$?
    [ -n "$signalled" ] || return 0
  done
}

# Send signal $1 to every other process of this container; in a shared process namespace only to the script.
signal_all() {
  if [ $$ -eq 1 ]; then kill -s "$1" -- -1; else kill -s "$1" "$child"; fi 2>/dev/null
}

# Why the agent ends this task: "done", or "failed RANK CODE"; nothing if it does not.
ending() { cat "$state/ending" 2>/dev/null; }

# The task gets SIGTERM, after its delay if the group has succeeded, and SIGKILL when its grace time is over: a
# container that Kubernetes itself has to kill would count as failed.
# shellcheck disable=SC2329 # the trap calls it
on_signal() {
  signalled=1
  [ -z "$stopped" ] || return 0
  stopped=1
  (
    trap '' TERM INT
    if [ "$(ending)" = "done" ] || [ -z "$GPU_CHARTS_AGENT" ]; then sleep "$GPU_CHARTS_DELAY_S"; fi
    signal_all TERM
    sleep "$GPU_CHARTS_GRACE_S"
    signal_all KILL
  ) &
}

# Tell the agent $1 and wait for its word on pipe $2, at most $3 seconds if given; the word is in $word.
ask_agent() {
  : >"$state/word"
  (
    echo "$1" >"$state/news"
    IFS= read -r line <"$state/$2" && printf '%s' "$line" >"$state/word"
  ) &
  asking=$!
  if [ -n "${3:-}" ]; then (sleep "$3" && kill "$asking") 2>/dev/null & fi
  wait_for "$asking"
  word=$(cat "$state/word")
}

# Beside the task: a copy of its output for the volume that keeps logs, and an ear for the end of the group.
start_helpers() {
  if [ -n "$GPU_CHARTS_LOGS" ]; then
    (
      trap '' TERM INT
      exec tee "$state/log" <"$state/out" >&3
    ) &
    tee=$!
    exec >"$state/out" 2>&1
  fi
  if [ -n "$GPU_CHARTS_AGENT" ]; then
    (
      trap '' TERM INT
      IFS= read -r why <"$state/end" && echo "$why" >"$state/ending" && kill -s TERM $$
    ) >/dev/null 2>&1 & # it must not hold the task's output open
  fi
}

# Let the copy of the output come to its end.
stop_copy() {
  [ -n "$GPU_CHARTS_LOGS" ] || return 0
  signal_all TERM # what the task left behind would keep the pipe open
  exec >&3 2>&1
  (sleep 2 && kill -s KILL "$tee") 2>/dev/null &
  wait_for "$tee"
}

# JobSet deletes what still runs when it sees a failure: let it first see that the others have ended.
leave_last() {
  trap '' TERM INT
  sleep 5
  exit "$1"
}

# End this container with exit code $1; $2 is what the agent has to know.
finish() {
  trap '' TERM INT
  stop_copy
  if [ -n "$GPU_CHARTS_AGENT" ] && [ -n "${2:-}" ]; then ask_agent "$2" told 10; fi
  if [ -n "$GPU_CHARTS_PARK" ] && [ "$1" -ne 0 ]; then
    say "failed; waits for the others to end"
    trap 'leave_last "$1"' TERM INT # from the ear, or from outside
    [ -z "$(ending)" ] || leave_last "$1" # the ear was faster
    while :; do wait; sleep 3600 & done
  fi
  exit "$1"
}

fatal() { # exit code, facts
  echo "[FATAL] node=$GPU_CHARTS_HOST exit_code=$*" >&2
  finish "$1" "result $1"
}

copy_files() {
  while read -r mode key && IFS= read -r target; do
    case $target in \~/*) target=$HOME/${target#??} ;; esac
    { mkdir -p -- "${target%/*}" && cp -- "$group/files/$key" "$target" && chmod "$mode" "$target"; } ||
      fatal 1 "file=$target could not be written"
  done <"$scripts/files"
}

clone() { # url, ref
  command -v git >/dev/null || fatal 1 "workdir: the image has no git"
  [ -z "${GIT_TOKEN:-}" ] || export GIT_ASKPASS="$scripts/askpass"
  (
    rm -rf "$workdir" && git init -q "$workdir" && cd "$workdir" && git remote add origin "$1" || exit 1
    # A server may refuse to fetch a commit by its hash; then everything is fetched.
    if git fetch -q --depth 1 origin "${2:-HEAD}"; then git checkout -q FETCH_HEAD; else
      git fetch -q origin && git checkout -q "$2"
    fi
  ) &
  wait_for $!
  [ "$code" -eq 0 ] || fatal 1 "workdir: git could not get ${2:-HEAD} of $1"
}

step() { # setup or run; its exit code is in $code
  step=$1
  code=0
  [ -s "$scripts/$1" ] || return 0
  "$shell" "$scripts/$1" 3>&- &
  wait_for $!
}

attempt() {
  if [ -n "$unprepared" ]; then
    export SKYPILOT_SETUP_NODE_RANK="$SKYPILOT_NODE_RANK" SKYPILOT_SETUP_NODE_IPS="$SKYPILOT_NODE_IPS" \
      SKYPILOT_SETUP_NUM_GPUS_PER_NODE="$SKYPILOT_NUM_GPUS_PER_NODE"
    step setup
    if [ "$code" -ne 0 ] || [ -n "$stopped" ]; then return 0; fi
    unprepared=''
    if [ -n "$GPU_CHARTS_AGENT" ]; then echo started >"$state/news"; fi
  fi
  step run
}

# Start again in this container after a failure, if the task may: after listed codes always, else so many times.
recover() {
  [ -n "$GPU_CHARTS_IN_PLACE" ] || return 1
  case " $GPU_CHARTS_RECOVER_CODES " in
    *" $code "*) ;;
    *)
      [ "$errors" -lt "$GPU_CHARTS_MAX_RESTARTS" ] || return 1
      errors=$((errors + 1))
      ;;
  esac
  say "step=$step exit_code=$code starts_again_in_s=$pause errors=$errors of=$GPU_CHARTS_MAX_RESTARTS"
  stop_copy
  signal_all KILL # what the attempt left behind; also the helpers
  start_helpers
  sleep "$pause" &
  wait_for $!
  if [ "$pause" -lt 60 ]; then pause=$((pause * 2)); fi
  [ -z "$stopped" ]
}

exec 3>&1
trap on_signal TERM INT
SKYPILOT_NODE_IPS=''
if [ -n "$GPU_CHARTS_LOGS" ]; then for pipe in log out; do [ -p "$state/$pipe" ] || mkfifo -m 666 "$state/$pipe" 2>/dev/null; done; fi
if [ -n "$GPU_CHARTS_AGENT" ]; then
  for pipe in news go end told; do [ -p "$state/$pipe" ] || mkfifo -m 666 "$state/$pipe" 2>/dev/null; done
  say "waits for the group"
  ask_agent here go
  case $word in
    go) ;;
    done) exit 0 ;; # the group ended before this task began
    fail*)
      word=${word#fail }
      echo "[FATAL] node=$GPU_CHARTS_HOST exit_code=$word" >&2
      exit "${word%% *}"
      ;;
    *) exit 143 ;; # stopped
  esac
  SKYPILOT_NODE_IPS=$(cat "$state/node_ips")
fi
export SKYPILOT_NODE_IPS
start_helpers
copy_files
workdir=$HOME/sky_workdir
if [ -s "$scripts/git" ]; then
  { IFS= read -r url && IFS= read -r ref; } <"$scripts/git"
  clone "$url" "$ref"
fi
if [ -d "$workdir" ]; then cd "$workdir" || fatal 1 "workdir: no access to $workdir"; fi
say "starts attempt=$ATTEMPT"

while attempt; do
  if [ -n "$stopped" ] || [ "$code" -eq 0 ] || ! recover; then break; fi
done

if [ -n "$stopped" ]; then
  why=$(ending)
  case $why in
    done)
      say "ended with the group"
      finish 0
      ;;
    failed*) fatal 1 "stopped: $why" ;;
  esac
  say "stopped by SIGTERM"
  finish 143 # the Job starts another pod for this rank and does not count it
fi
[ "$code" -ne 0 ] || finish 0 "result 0"
signal=''
if [ "$code" -gt 128 ]; then signal=" signal=$((code - 128))"; fi
echo "[FATAL] node=$GPU_CHARTS_HOST step=$step exit_code=$code$signal errors=$errors of=$GPU_CHARTS_MAX_RESTARTS" >&2
result="result $code"
[ "$code" -ne 143 ] || code=1 # 143 tells the Job that the pod was stopped from outside
# An auxiliary task of several nodes may still restart the group, as often as it says.
if [ -z "$GPU_CHARTS_IN_PLACE" ]; then
  case " $GPU_CHARTS_RECOVER_CODES " in *" $code "*) GPU_CHARTS_OPTIONAL='' ;; esac
  if [ "$ATTEMPT" -lt "$GPU_CHARTS_MAX_RESTARTS" ]; then GPU_CHARTS_OPTIONAL=''; fi
fi
if [ -n "$GPU_CHARTS_OPTIONAL" ]; then
  say "the group goes on without this auxiliary task"
  finish 0 "$result"
fi
finish "$code" "$result"
