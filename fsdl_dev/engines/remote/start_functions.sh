# What the start scripts of fsdl_dev call. It lies beside fsdl_dev itself, and any POSIX shell reads it.
# shellcheck shell=sh disable=SC2034
if [ -n "${ZSH_VERSION-}" ]; then emulate sh; fi
trap : USR1
unset CDPATH  # of a start file: cd would print where it went

# ---- a run that cannot start says why: its card shows these sentences
json() {  # a text as a JSON string
    printf '"%s"' "$(printf '%s' "$1" | tr -d '\000-\010\013-\037' | sed -e ':a' -e '$!{N' -e 'ba' -e '}' -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/	/ /g' -e 's/\n/\\n/g')"
}
event() {  # its kind, and its other fields as JSON
    moment=$(date +%s.%N)
    case $moment in *[!0-9.]*) moment=$(date +%s).999 ;; esac
    [ -d "$RUN/events" ] || mkdir -p "$RUN/events"
    printf '{"t": %s, "kind": "%s", "rank": null, %s}\n' "$moment" "$1" "$2" >> "$RUN/events/worker.jsonl"
}
result() {  # the final state, the reason
    printf '{"state": "%s", "reason": %s, "exit_code": null, "seconds": 0, "value": null, "metrics": {}, "checkpoint": null, "failure": null}\n' \
        "$1" "$(json "$2")" > "$RUN/.result.json.$$" && mv "$RUN/.result.json.$$" "$RUN/result.json"
    event state "\"state\": \"$1\", \"reason\": $(json "$2"), \"exit_code\": null"
}
fail() {  # what happened, where, what fixes it
    message="$1
  where: $2
  fix:   $3"
    printf '%s\n' "$message" >&2
    event failure "\"type\": \"FsdlError\", \"message\": $(json "$message"), \"frames\": [], \"traceback\": \"\", \"exit_code\": null, \"signal\": null"
    result failed "$1"
    exit 1
}
stopped() {  # what was going on: the run is cancelled; or its machine is taken away, and another life follows
    if [ ! -e "$RUN/cancel.json" ] && grep -q '"requeue": *["t]' "$RUN/placement.json" 2>/dev/null; then
        phase fail interrupted
        [ -z "${SLURM_JOB_ID-}" ] || exit 143  # Slurm knows which of the two it was
        exit 85
    fi
    phase fail cancelled
    result cancelled "cancelled while $1"
    exit 143
}

# ---- what takes minutes is made once, by one run, and kept in the storage
phase() {  # start, end or fail; what happens, in plain words
    event phase "\"name\": \"environment\", \"state\": \"$1\", \"text\": $(json "$2"), \"seconds\": $(($(date +%s) - began))"
}
give_up() {  # what happened, what fixes it
    phase fail "$1"
    fail "$1" "$(uname -n); logs/environment.log ends with: $(tail -n 6 "$RUN/logs/environment.log" 2>/dev/null | LC_ALL=C tr -d '\200-\377' | tr '\n' ' ')" "$2"
}
child() { "$@" & one=$!; trap 'kill "$one" 2>/dev/null; exit 143' TERM; wait "$one"; }  # a command that ends when its maker is told to
stop_making() {
    # shellcheck disable=SC2086
    kill $children 2>/dev/null
    [ -z "$building" ] || rm -rf "$PLACE.guard" "$building"
}
leave() { stop_making; stopped 'its environment was made'; }
take_guard() {  # wait until no other process makes $PLACE; false where somebody has made it
    last='' still=0 told=''
    until mkdir "$PLACE.guard" 2>/dev/null; do
        if [ -e "$READY" ]; then return 1; fi
        if [ ! -d "$PLACE.guard" ] && ! mkdir -p "${PLACE%/*}/.try" 2>/dev/null; then
            give_up "Nothing can be kept in ${PLACE%/*}: it cannot be written, or the disk is full." 'storage = "a folder that can be written", in the fields of the target'
        fi
        if [ -z "$told" ]; then phase start 'another run makes the environment: waiting for it'; told=yes; fi
        count=$(cat "$PLACE.guard/count" 2>/dev/null)
        if [ "$count" = "$last" ]; then still=$((still + 1)); else still=0 last=$count; fi
        if [ "$still" -ge "${FSDL_GUARD_PATIENCE:-60}" ] && mv "$PLACE.guard" "$PLACE.guard.$$" 2>/dev/null; then rm -rf "$PLACE.guard.$$"; still=0; fi
        sleep 1 & wait $!
    done
    [ ! -e "$READY" ] || { rmdir "$PLACE.guard"; return 1; }
}
make_once() {  # what the card says; then the command that makes $building, which is moved to $PLACE. It is there when $READY is
    if [ -e "$READY" ]; then return; fi
    said=$1 began=$(date +%s) building='' children=''
    shift
    trap leave TERM INT
    [ -d "${PLACE%/*}" ] || mkdir -p "${PLACE%/*}" 2>/dev/null
    [ -d "$RUN/logs" ] || mkdir -p "$RUN/logs"
    if ! take_guard; then phase end 'another run has made it'; trap - TERM INT; return; fi
    phase start "$said"
    (n=0; while kill -0 $$ 2>/dev/null; do n=$((n + 1)); echo "$$ $n" > "$PLACE.guard/count"; sleep 2; done) >/dev/null 2>&1 &
    children=$!
    building="$PLACE.building.$$"
    rm -rf "$PLACE".building.*  # left by dead makers
    "$@" >> "$RUN/logs/environment.log" 2>&1 &
    children="$children $!"
    if ! ended $!; then stop_making; give_up "It could not be done: $said." "fsdl logs ${RUN##*/}   (logs/environment.log there has everything)"; fi
    rm -rf "$PLACE"
    mv "$building" "$PLACE"
    stop_making
    phase end "$said"
    trap - TERM INT
}

# ---- the environment of the lock, made by uv
run_uv() { if [ -n "$UV" ]; then child "$UV" "$@"; else child "$PYTHON" -m uv "$@"; fi; }
find_uv() {
    for UV in uv "$HOME/.local/bin/uv" "$HOME/.cargo/bin/uv"; do
        if command -v "$UV" >/dev/null 2>&1; then return; fi
    done
    UV=''
    "$PYTHON" -m uv --version >/dev/null 2>&1 || fail 'There is no uv here, which makes environments.' "$(uname -n)" \
        'curl -LsSf https://astral.sh/uv/install.sh | sh   (there), or environment = "there" in the fields of the target'
}
make_environment() {
    if [ ! -w "$HOME" ]; then export UV_CACHE_DIR="${UV_CACHE_DIR:-$STORAGE/cache/uv}"; fi
    if [ -n "$TORCH_BUILD" ] && [ -z "${UV_FIND_LINKS-}${UV_INDEX-}${UV_EXTRA_INDEX_URL-}${UV_DEFAULT_INDEX-}" ]; then export UV_TORCH_BACKEND="${UV_TORCH_BACKEND-$TORCH_BUILD}"; fi
    dependencies=--no-deps
    if [ "$(uname -s) $(uname -m)" != "$PLATFORM" ]; then dependencies=''; fi
    requirements > "$RUN/requirements.txt"
    run_uv venv --relocatable --python "$WANTED" "$building" &&
        run_uv pip install --python "$building/bin/python" ${dependencies:+"$dependencies"} --compile-bytecode -r "$RUN/requirements.txt" &&
        touch "$building/.complete"
}
use_environment() {  # the digest of the lock, how many packages it has: $PYTHON is its Python from here on
    PLACE="$STORAGE/envs/$1" READY="$STORAGE/envs/$1/.complete"
    if [ ! -e "$READY" ]; then find_uv; make_once "making the environment: $2 packages for Python $WANTED" make_environment; fi
    PYTHON="$PLACE/bin/python"
}

# ---- a login bash, a Python of 3.11 or newer, and fsdl_dev itself
# shellcheck disable=SC3044
in_login_bash() {  # the script's own arguments
    if ! { [ -n "${BASH_VERSION-}" ] && shopt -q login_shell; } && [ -f "$0" ] && command -v bash >/dev/null 2>&1; then exec bash -l "$0" "$@"; fi
}
need_python() {  # what fixes it where there is none
    "$PYTHON" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 11) and 9)' 2>/dev/null
    case $? in
        0) ;;
        126 | 127) fail "There is no Python at $PYTHON." "$(uname -n)" "$1" ;;
        *) fail "The Python there is too old or does not work ($PYTHON says: $("$PYTHON" -V 2>&1 | head -n 1)); 3.11 or newer is needed." "$(uname -n)" "$1" ;;
    esac
}
unpack_fsdl_dev() {  # once: who comes while another run is at it waits a minute at most
    if [ ! -d "$RUNTIME" ] && ! mkdir "$RUNTIME.unpacking" 2>/dev/null; then
        waited=0
        while [ ! -d "$RUNTIME" ] && [ -d "$RUNTIME.unpacking" ] && [ "$waited" -lt 60 ]; do sleep 1; waited=$((waited + 1)); done
    fi
    if [ ! -d "$RUNTIME" ]; then
        "$PYTHON" -I -c '
import compileall, os, shutil, sys, zipfile
archive, place = sys.argv[1:]
beside = f"{place}.{os.uname().nodename}.{os.getpid()}"
zipfile.ZipFile(archive).extractall(beside)
compileall.compile_dir(beside, quiet=2, stripdir=beside, prependdir=place)
try:
    os.rename(beside, place)
except OSError:  # another run was quicker
    shutil.rmtree(beside)
    sys.exit(not os.path.isdir(place))
' "$RUNTIME.zip" "$RUNTIME" 2>"$RUN/.unpack.log" || unpacked=no
        rmdir "$RUNTIME.unpacking" 2>/dev/null
        [ "${unpacked-}" != no ] || fail "fsdl_dev could not be unpacked: $(tail -n 1 "$RUN/.unpack.log")" "$RUNTIME.zip" "launch again; if it says so again, free some space there"
    fi
    export PYTHONPATH="$RUNTIME${PYTHONPATH:+:$PYTHONPATH}"
}
enter_run() { cd "$RUN" || fail "The run directory is gone." "$RUN" "launch again"; }
