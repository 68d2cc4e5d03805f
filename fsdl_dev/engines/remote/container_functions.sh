# From an image's name to the worker in its container. It is sent behind start_functions.sh, in the same file:
# fail, phase, make_once and $building are from there, $READY and $began are read there; the start script sets
# $RUN, $STORAGE, $IMAGE, $NAME and $PLACE.
# shellcheck shell=sh disable=SC2034,SC2153,SC2154,SC2317
# ---- the image
need_engine() {  # docker, podman, apptainer or srun
    other=podman
    if [ "$1" = podman ]; then other=docker; fi
    command -v "$1" >/dev/null 2>&1 || fail "There is no $1 on this machine." "$(uname -n)" "container = \"$other\" in the fields of the target, or an administrator who installs it"
    if [ "$1" = srun ] && ! srun --help 2>/dev/null | grep -q container-image; then
        fail 'This Slurm has no Pyxis: srun does not know --container-image.' "$(uname -n)" 'container = "apptainer" in the fields of the target'
    fi
}
fetch_image() {  # docker, podman, apptainer or srun
    need_engine "$1"
    case $1 in docker | podman) ;; apptainer) make_image_file; return ;; *) return ;; esac
    began=$(date +%s)
    if ! "$1" image inspect "$IMAGE" >/dev/null 2>&1; then
        phase start "fetching $IMAGE"
        trap 'kill $!; stopped "its image was fetched"' TERM INT
        "$1" pull "$IMAGE" >> "$RUN/logs/environment.log" 2>&1 &
        ended $! || give_up "The image $IMAGE could not be had." "$1 pull $IMAGE   (there)"
        trap - TERM INT
        phase end "$IMAGE"
    fi
    [ "${FSDL_NODE_RANK:-0}" != 0 ] || event note "\"level\": \"info\", \"text\": $(json "image $IMAGE: $("$1" image inspect --format '{{.Id}}' "$IMAGE")")"
    "$1" rm --force "$NAME" >/dev/null 2>&1  # of an earlier life of this run
}
pull_image() { child apptainer pull "$building" "$IMAGE"; }
make_image_file() {
    READY="$PLACE"
    [ "$PLACE" = "$IMAGE" ] || make_once "fetching $IMAGE" pull_image
    [ -e "$PLACE" ] || fail "There is no image $PLACE." "$(uname -n)" "image = the path of an image on this machine"
}

# ---- into the container, and wait for its end
attend() {  # a command: signals are passed on to what it started; $code is how it ended
    told='' outlived='' container=''
    case $1 in
        srun) trap 'told=yes; scancel -Q --signal=TERM "$SLURM_JOB_ID" 2>/dev/null' TERM INT; trap 'scancel -Q --signal=USR1 "$SLURM_JOB_ID" 2>/dev/null' USR1 ;;
        *) trap 'pass_on TERM' TERM INT; trap 'pass_on USR1' USR1 ;;
    esac
    "$@" &
    container=$!
    [ -z "$told" ] || pass_on TERM  # it came just now
    ended "$container"
    code=$?
    while is_inside; do sleep 1; outlived=yes; done
    if [ -n "$outlived" ]; then  # the client's status says nothing of the worker
        if [ ! -e "$RUN/result.json" ]; then code=85; elif grep -q '"state": *"succeeded"' "$RUN/result.json"; then code=0; else code=1; fi
    fi
}
ended() {  # a child: how it ended. A signal that comes meanwhile does not end the wait
    wait "$1"
    how=$?
    while kill -0 "$1" 2>/dev/null; do wait "$1"; how=$?; done
    return "$how"
}
is_inside() {  # whether the container's first process is there, by this machine's numbers: $inside
    inside=''
    { read -r inside < "$(mark)"; } 2>/dev/null
    [ -n "$inside" ] && [ "$inside" != "$$" ] && { tr '\0' ' ' < "/proc/$inside/cmdline"; } 2>/dev/null | grep -qF "$RUN"
}
mark() { echo "$RUN/.inside${SLURM_JOB_ID:+.$SLURM_JOB_ID}${FSDL_NODE_RANK:+.$FSDL_NODE_RANK}"; }  # of this job: a twin has its own
pass_on() {  # a signal's name
    [ "$1" != TERM ] || told=yes
    if is_inside && kill "-$1" "$inside" 2>/dev/null; then return; fi
    [ -z "$container" ] || kill "-$1" "$container" 2>/dev/null
}
renumber() {  # in the container, the GPUs that the job has are 0, 1, ...
    CUDA_VISIBLE_DEVICES='' count=0
    for _ in $(echo "$SLURM_JOB_GPUS" | tr ',' ' '); do CUDA_VISIBLE_DEVICES="$CUDA_VISIBLE_DEVICES${CUDA_VISIBLE_DEVICES:+,}$count" count=$((count + 1)); done
    export CUDA_VISIBLE_DEVICES
}

answer_questions() {  # of the worker in the container, to Slurm; as long as this script is there
    trap '' TERM INT USR1
    while [ -e "/proc/$$/exe" ]; do  # not so for a script that was killed and not waited for
        for question in "$FSDL_SLURM"/*.ask; do
            if [ -e "$question" ]; then answer "${question%.ask}" & fi
        done
        sleep 1
    done
}
answer() {  # a question's file, without its ending
    question=$1
    mv "$question.ask" "$question.words" 2>/dev/null || return
    set --
    while IFS= read -r word; do set -- "$@" "$word"; done < "$question.words"
    case ${1-} in
        scontrol | squeue | sacct | sinfo) SLURM_TIME_FORMAT=%s timeout -s KILL 30 sh -c 'trap "" TERM INT USR1; exec "$@"' sh "$@" > "$question.out" 2> "$question.err" ;;
        *) : > "$question.out"; echo "$1 is not a command of Slurm's" > "$question.err"; false ;;
    esac
    echo "$?" > "$question.new" && mv "$question.new" "$question.status"
}
go_in() {  # the engine's command: its program, its verb, and its options
    engine=$1 verb=$2
    [ "$engine" = srun ] || export FSDL_STARTER="$$"  # Slurm ends what srun started
    [ -z "${SLURM_JOB_ID-}" ] || [ "${FSDL_NODE_RANK:-0}" != 0 ] || export FSDL_SLURM="$RUN/.questions.$SLURM_JOB_ID"  # the worker's machine asks
    case $engine in docker | podman) shift 2; go_in_by_name "$@"; return ;; apptainer) if [ -e /dev/nvidiactl ]; then shift 2; set -- apptainer "$verb" --nv "$@"; fi ;; esac
    see_through "$@"
}
go_in_by_name() {  # options of docker run or podman run
    if [ -d /dev/infiniband ]; then set -- --device /dev/infiniband --ulimit memlock=-1 "$@"; fi
    : "${USER:=$(id -un)}"
    export USER
    slots="${FSDL_STATE:-${XDG_STATE_HOME:-$HOME/.local/state}/fsdl_dev}"  # of the machine's slots: runs outside of containers lease them too
    for folder in "$slots" ${FSDL_SLOTS_FOLDER:+"$FSDL_SLOTS_FOLDER"}; do
        if mkdir -p "$folder" 2>/dev/null; then set -- --mount "type=bind,source=$folder,target=$folder" "$@"; fi
    done
    if [ -d /var/tmp/fsdl_dev ] || mkdir -m 1777 /var/tmp/fsdl_dev 2>/dev/null; then set -- --mount type=bind,source=/var/tmp/fsdl_dev,target=/var/tmp/fsdl_dev "$@"; fi
    [ -n "${FSDL_STATE-}" ] || set -- --env "XDG_STATE_HOME=${slots%/*}" "$@"
    if [ "$engine" = podman ] && [ "$(id -u)" != 0 ]; then set -- --userns keep-id --group-add keep-groups "$@"; fi
    if [ "$engine" = docker ]; then
        for group in $(id -G); do set -- --group-add "$group" "$@"; done
        set -- --user "$(id -u):$(id -g)" "$@"
    fi
    if [ -e /dev/nvidiactl ] || { [ "$engine" = docker ] && [ -e /dev/dxg ]; }; then
        if [ "$engine" = podman ]; then
            for gpu in $(echo "${SLURM_JOB_GPUS:-all}" | tr ',' ' '); do set -- --device "nvidia.com/gpu=$gpu" "$@"; done
        elif [ -n "${SLURM_JOB_GPUS-}" ]; then set -- --gpus "\"device=$SLURM_JOB_GPUS\"" "$@"; else set -- --gpus all "$@"; fi
        [ -z "${SLURM_JOB_GPUS-}" ] || renumber
    fi
    for name in USER $(env | sed -n -E 's/^((SLURMD?|FSDL|NCCL|GLOO|WANDB|HF|MASTER|OMP|CUDA)_[A-Z0-9_]+|RANK|WORLD_SIZE|NODE_RANK|TZ|LANG)=.*/\1/p'); do set -- --env "$name" "$@"; done
    see_through "$engine" "$verb" "$@"
}
see_through() {  # the whole command: the script ends with it
    rm -f "$(mark)"
    if [ -n "${FSDL_SLURM-}" ]; then
        rm -rf "$FSDL_SLURM" 2>/dev/null
        [ -d "$FSDL_SLURM" ] || mkdir -m 700 "$FSDL_SLURM"
        { answer_questions; } > /dev/null 2>&1 &  # in braces: dash would keep this script's output open for it
    fi
    attend "$@"
    [ -z "${FSDL_SLURM-}" ] || rm -rf "$FSDL_SLURM"
    [ -e "$(mark)" ] || [ -e "$RUN/result.json" ] || {
        [ -z "$told" ] || stopped 'its container was started'
        fail "The container of $IMAGE ended with status $code before the worker began." "$(uname -n), by $engine; what it said is in logs/worker.log" "fsdl logs ${RUN##*/}"
    }
    exit "$code"
}
be_inside() {  # the container has begun; a home folder that can be written, for caches
    if [ ! -w "${HOME:-/}" ]; then HOME="$STORAGE/home"; mkdir -p "$HOME"; export HOME; fi
    echo "$$" > "$(mark)"
    end_with_starter "${FSDL_STARTER-}" &
    unset FSDL_STARTER
}
end_with_starter() {  # the script outside got a SIGKILL: it cannot end its container any more
    if [ -z "$1" ] || [ ! -d "/proc/$1" ]; then return; fi  # an engine on another machine, or with process numbers of its own
    while [ -d "/proc/$1" ]; do sleep 2 || return; done
    if [ -n "${SLURM_JOB_ID-}" ]; then kill -KILL "$$"; else kill -TERM "$$"; fi  # Slurm knows why, and may begin the run's next life
}
