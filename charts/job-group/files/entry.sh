#!/bin/sh
# Process 1 of a task's container, in any image with a POSIX shell: waits for the group, copies
# files, clones the workdir, runs setup and run, starts them again after a failure, and stops them.
# /group/scripts holds what users wrote, /group/state the named pipes to the agent in the same pod:
# events (to the agent), the others (from it). /group/programs has commands for a task with
# `launcher: ddp-launch`. Settings are in GPU_CHARTS_… variables.
set -u
# Exit codes. Generated from worker/src/gpuworker/runtime/contract.py by `make generate`.
FAILED=1
USAGE=2
NODE_LOST=71
NODE_UNFIT=72
SAVED=75
STOPPED=143
# End of the generated lines.
: "${GPU_CHARTS_AGENT=}" "${GPU_CHARTS_MAY_FAIL=}" "${GPU_CHARTS_END_LAST=}"
: "${GPU_CHARTS_IN_PLACE=}" "${GPU_CHARTS_RECOVER_CODES=}" "${GPU_CHARTS_LAUNCHER=}"
: "${GPU_CHARTS_QUEUE=}" "${GPU_CHARTS_HELD=}" "${GPU_CHARTS_NODE_TEST=}" "${NNODES=1}"
group=${GPU_CHARTS_ROOT:-/group}
scripts=$group/scripts state=$group/state
stopped='' # SIGTERM was received
stopping='' # the process that ran then gets its signals
child='' setup_done='' errors=0 pause=1
shell='sh'
if command -v bash >/dev/null; then shell='bash'; fi

log() { echo "[GROUP] node=$GPU_CHARTS_HOST $*"; }

# Wait for process $1 (then $child), also across signals. Its exit code is in $code.
wait_for() {
  child=$1
  code=127
  [ -z "$stopped" ] || stop_child # SIGTERM came before there was a process to stop
  while :; do
    signalled=''
    wait "$1"
    ended=$?
    [ "$ended" -eq 127 ] || code=$ended # 127: it had ended when the last signal came
    [ -n "$signalled" ] || break
  done
  child=''
}

# Send signal $1 to every other process of this container; in a shared process namespace only to the
# script.
signal_all() {
  if [ $$ -eq 1 ]; then kill -s "$1" -- -1; else kill -s "$1" "$child"; fi 2>/dev/null
}

# The program may do anything in $state. Print file $1 there, up to 128 KiB, but no link, pipe or
# device; and remove these before file $1 is written, because a pipe waits for a reader.
print_file() {
  [ ! -L "$state/$1" ] && [ -f "$state/$1" ] && dd if="$state/$1" bs=131072 count=1
} 2>/dev/null
clear_name() {
  if [ -L "$state/$1" ] || [ ! -f "$state/$1" ]; then rm -f "$state/$1"; fi
} 2>/dev/null

make_pipes() (
  # the agent makes them, too, perhaps just now
  cd "$state" && for pipe in events start after_setup end ack; do
    [ -p "$pipe" ] || mkfifo -m 666 "$pipe" || [ -p "$pipe" ] ||
      { rm -rf "$pipe" && mkfifo -m 666 "$pipe"; }
  done
) 2>/dev/null

# shellcheck disable=SC2329 # the trap calls it
on_signal() {
  signalled=1
  stopped=1
  [ -z "$child" ] || stop_child # without one, $! must stay what it is: wait_for is about to get it
}

# The task gets SIGTERM, after its delay if the group has succeeded, and SIGKILL after the grace
# period: a container that Kubernetes itself has to kill would count as failed.
stop_child() {
  [ -z "$stopping" ] || return 0
  stopping=1
  (
    trap '' TERM INT
    if [ "$(print_file end_reason)" = "done" ] || [ -z "$GPU_CHARTS_AGENT" ]; then
      sleep "$GPU_CHARTS_DELAY_S"
    fi
    signal_all TERM
    sleep "$GPU_CHARTS_GRACE_S"
    signal_all KILL
  ) >/dev/null 2>&1 &
}

# Keep event $1 for an agent that starts again. The agent may get it a second time from the pipe.
keep_event() { clear_name events.sent; echo "$1" >>"$state/events.sent"; } 2>/dev/null

# Send event $1 to the agent and wait for a line in pipe $2, at most $3 seconds if given. The line
# is in $reply.
request() {
  clear_name reply && true >"$state/reply" # a redirection of : that fails would end the shell
  keep_event "$1"
  make_pipes
  (
    echo "$1" >"$state/events"
    # <>: no end when an agent starts again
    IFS= read -r line <>"$state/$2" && printf '%s' "$line" >"$state/reply"
  ) &
  requesting=$!
  # It may ignore SIGTERM, as this shell does at its end.
  if [ -n "${3:-}" ]; then (sleep "$3" && kill -s KILL "$requesting") 2>/dev/null & fi
  wait_for "$requesting"
  reply=$(print_file reply)
}

# End the task when the group ends.
watch_end() {
  [ -n "$GPU_CHARTS_AGENT" ] || return 0
  make_pipes
  (
    trap '' TERM INT
    until IFS= read -r why <>"$state/end"; do sleep 1; done
    clear_name end_reason && echo "$why" >"$state/end_reason"
    kill -s TERM $$
  ) >/dev/null 2>&1 &
}

# JobSet deletes the pods that still run when a Job fails, so the others must have ended before.
exit_last() { trap '' TERM INT; sleep 5; exit "$1"; }

# End this container with exit code $1, after sending event $2 to the agent.
finish() {
  trap '' TERM INT
  stopping=1
  if [ -n "$GPU_CHARTS_AGENT" ] && [ -n "${2:-}" ]; then request "$2" ack 10; fi
  if [ -n "$GPU_CHARTS_END_LAST" ] && [ "$1" -ne 0 ] && [ "$1" -ne "$STOPPED" ]; then
    log "failed; waits for the others to end"
    trap 'exit_last "$1"' TERM INT # from the reader of `end`, or from outside
    [ -z "$(print_file end_reason)" ] || exit_last "$1" # the reader was faster
    while :; do wait; sleep 3600 & done
  fi
  exit "$1"
}

# the line before it may have no end
report_fatal() { printf '\n%s\n' "[FATAL] node=$GPU_CHARTS_HOST $*" >&2; }

refuse() { # exit code and facts, before the task's files are written
  report_fatal "exit_code=$1"
  # containerd can lose the log of a container that ends at once.
  [ ! -f /dev/termination-log ] ||
    (echo "[FATAL] node=$GPU_CHARTS_HOST exit_code=$1" >/dev/termination-log) 2>/dev/null || :
  exit "${1%% *}"
}

fatal() { # exit code, facts
  report_fatal "exit_code=$*"
  finish "$1" "result $1"
}

# Test this node before the rank joins, when nothing of the group runs yet. After an unfit one the
# group starts again on new pods, three times.
test_node() {
  python3 "$group/programs/accept-node" --level=prolog --report-dir="${TMPDIR:-/tmp}/node-test" &
  wait_for $!
  [ -z "$stopped" ] || exit "$STOPPED"
  if [ "$code" -eq 0 ] || [ "$GPU_CHARTS_NODE_TEST" != gate ]; then return 0; fi
  if [ "$code" -eq "$NODE_UNFIT" ] && [ "$ATTEMPT" -ge 3 ]; then code=$FAILED; fi
  fatal "$code" "the test of the node has failed"
}

copy_files() {
  while read -r mode key && IFS= read -r target; do
    case $target in \~/*) target=$HOME/${target#??} ;; esac
    { mkdir -p -- "${target%/*}" && cp -- "$group/files/$key" "$target" &&
      chmod "$mode" "$target"; } ||
      fatal "$FAILED" "file=$target could not be written"
  done <"$scripts/files"
}

clone() { # url, ref
  command -v git >/dev/null || fatal "$FAILED" "workdir: the image has no git"
  (
    if [ -n "${GIT_TOKEN:-}" ]; then # only here, so that no other call of git gets the token
      server=${1#*://}
      server=${server%%/*}
      export GIT_ASKPASS="$scripts/askpass" LC_ALL=C
      export GPU_CHARTS_GIT_SERVER="${1%%://*}://${server##*@}"
      git() { command git -c credential.helper= "$@"; } # a helper would store it
    fi
    rm -rf "$workdir" && git init -q "$workdir" && cd "$workdir" &&
      git remote add origin "$1" || exit 1
    # A server may refuse to fetch a commit by its hash; then everything is fetched.
    if git fetch -q --depth 1 origin "${2:-HEAD}"; then git checkout -q FETCH_HEAD; else
      git fetch -q origin && git checkout -q "$2"
    fi
  ) &
  wait_for $!
  [ "$code" -eq 0 ] || [ -n "$stopped" ] ||
    fatal "$FAILED" "workdir: git could not get ${2:-HEAD} of $1"
}

# What SkyPilot's shell does before setup and run: what setup wrote into ~/.bashrc counts, and
# `conda activate` works.
# shellcheck disable=SC2016 # the shell of the step expands it
begin='if [ -n "${BASH_VERSION-}" ] && [ -f ~/.bashrc ]; then . ~/.bashrc; fi
if conda=$(conda info --base 2>/dev/null) && [ -f "$conda/etc/profile.d/conda.sh" ]; then
  set -a; . "$conda/etc/profile.d/conda.sh"; set +a
fi
unset conda'

step() { # setup or run; its exit code is in $code
  step=$1 code=$STOPPED
  [ -z "$stopped" ] || return 0
  code=0
  [ -s "$scripts/$1" ] || return 0
  # With this trap the shell waits for its program: the container ends with process 1, whatever else
  # still runs.
  "$shell" -c "trap 'exit $STOPPED' TERM; $begin; cd \"\$1\" && shift && . \"\$0\"" \
    "$scripts/$1" "$workdir" &
  wait_for $!
}

attempt() {
  if [ -z "$setup_done" ]; then
    export SKYPILOT_SETUP_NODE_RANK="$SKYPILOT_NODE_RANK"
    export SKYPILOT_SETUP_NODE_IPS="$SKYPILOT_NODE_IPS"
    export SKYPILOT_SETUP_NUM_GPUS_PER_NODE="$SKYPILOT_NUM_GPUS_PER_NODE"
    step setup
    if [ "$code" -ne 0 ] || [ -n "$stopped" ]; then return 0; fi
    setup_done=1
    if [ -n "$GPU_CHARTS_AGENT" ] && [ "$NNODES" -gt 1 ] && [ -s "$scripts/setup" ]; then
      log "setup is done; waits for that of the other ranks"
      request started after_setup
      case $reply in fail*) code=$FAILED && log "setup failed on rank=${reply#fail }" ;; esac
      if [ "$code" -ne 0 ] || [ -n "$stopped" ]; then return 0; fi
    elif [ -n "$GPU_CHARTS_AGENT" ]; then
      keep_event started
      (echo started >"$state/events") >/dev/null 2>&1 & # it waits for an agent
    fi
  fi
  step run
}

# Whether the exit code is one that always restarts the task.
is_listed() { case " $GPU_CHARTS_RECOVER_CODES " in *" $code "*) ;; *) return 1 ;; esac }

# Start again in this container after a failure, if the task may: after listed codes always, else so
# many times.
recover() {
  [ -n "$GPU_CHARTS_IN_PLACE" ] || return 1
  if ! is_listed; then
    [ "$errors" -lt "$GPU_CHARTS_MAX_RESTARTS" ] || return 1
    errors=$((errors + 1))
  fi
  log "step=$step exit_code=$code restarts_in_s=$pause errors=$errors of=$GPU_CHARTS_MAX_RESTARTS"
  signal_all KILL # what the attempt left behind; also the reader of `end`
  # the launcher's message about this attempt
  [ ! -f /dev/termination-log ] || (: >/dev/termination-log) 2>/dev/null
  watch_end
  sleep "$pause" &
  wait_for $!
  if [ "$pause" -lt 60 ]; then pause=$((pause * 2)); fi
  [ -z "$stopped" ]
}

trap on_signal TERM INT
# Kueue labels each pod that it holds until the group fits. Other pods would start one by one, and
# hold nodes in part.
if [ -n "$GPU_CHARTS_QUEUE" ] && [ "$GPU_CHARTS_HELD" != true ]; then
  refuse "$USAGE kueue.queueName: Kueue did not hold this pod for the group. \
Either it manages each Job by itself, because of a LocalQueue with the name default or \
manageJobsWithoutQueueName, or it manages no pods. \
Set workload: jobset, or use another namespace."
fi
[ -z "$GPU_CHARTS_NODE_TEST" ] || test_node
SKYPILOT_NODE_IPS=''
if [ -n "$GPU_CHARTS_AGENT" ]; then
  log "waits for the group"
  request joined start
  case $reply in
    run) ;;
    done) exit 0 ;; # the group ended before this task began
    fail*) refuse "${reply#fail }" ;;
    *)
      [ -z "$stopped" ] || exit "$STOPPED"
      refuse "$FAILED the agent's answer cannot be stored in $state/reply: \
is the disk of the node full?"
      ;;
  esac
  SKYPILOT_NODE_IPS=$(print_file node_ips)
fi
export SKYPILOT_NODE_IPS
if [ -n "$GPU_CHARTS_LAUNCHER" ]; then # torchrun, by that name, as a module and in accelerate
  export PATH="$group/programs:$PATH" GPU_CHARTS_TORCHRUN="$group/programs/torchrun"
  export PYTHONPATH="$group/programs/programs.pyz${PYTHONPATH:+:$PYTHONPATH}" # its sitecustomize
fi
watch_end
workdir=$HOME/sky_workdir
if [ -s "$scripts/git" ]; then
  { IFS= read -r url && IFS= read -r ref; } <"$scripts/git"
  clone "$url" "$ref"
fi
copy_files # after the clone, which begins with an empty folder
{ mkdir -p "$workdir" && cd "$workdir"; } || fatal "$FAILED" "workdir: no access to $workdir"
export PYTHONUNBUFFERED="${PYTHONUNBUFFERED-1}"
log "starts attempt=$ATTEMPT"

while attempt; do
  if [ -n "$stopped" ] || [ "$code" -eq 0 ]; then break; fi
  # The launcher stopped the program on every node, because one node was stopped from outside, or
  # lost.
  if [ -n "$GPU_CHARTS_LAUNCHER" ] && ! is_listed; then
    case $code in "$SAVED" | "$STOPPED" | "$NODE_LOST") stopped=1 ;; esac
  fi
  if [ -n "$stopped" ] || ! recover; then break; fi
done

if [ -n "$stopped" ]; then
  why=$(print_file end_reason)
  case $why in
    done) log "ended with the group"; finish 0 ;;
    failed*)
      # The pod of the rank that failed must end first: JobSet names the first, and deletes those
      # that still run.
      if [ -n "$GPU_CHARTS_MAY_FAIL" ]; then log "stopped: $why"; finish 0; fi
      sleep 5
      fatal "$FAILED" "stopped: $why"
      ;;
  esac
  log "stopped step=$step exit_code=$code"
  finish "$STOPPED" # the Job replaces the pod of this rank and does not count a failure
fi
[ "$code" -ne 0 ] || finish 0 "result 0"
signal=''
if [ "$code" -gt 128 ] && [ "$code" -le 192 ]; then signal=" signal=$((code - 128))"; fi
report_fatal "step=$step exit_code=$code$signal errors=$errors of=$GPU_CHARTS_MAX_RESTARTS"
result="result $code"
# to the Job, STOPPED means that the pod was stopped from outside
[ "$code" -ne "$STOPPED" ] || code=$FAILED
# With a test, NODE_UNFIT means that the node has failed it.
if [ "$code" -eq "$NODE_UNFIT" ] && [ -n "$GPU_CHARTS_NODE_TEST" ]; then code=$FAILED; fi
# An auxiliary task of several nodes may still restart the group, up to its maxRestartsOnErrors.
if [ -n "$GPU_CHARTS_MAY_FAIL" ] && {
  [ -n "$GPU_CHARTS_IN_PLACE" ] ||
    { ! is_listed && [ "$ATTEMPT" -ge "$GPU_CHARTS_MAX_RESTARTS" ]; }
}; then
  log "the group goes on without this auxiliary task"
  finish 0 "$result"
fi
finish "$code" "$result"
