# shellcheck shell=sh
# ---- the run lives on this machine's disk, the bucket gets what changes
mkdir -p "$ROOT/runs" "$ROOT/runtimes" || exit 1
for part in blobs packs snapshots; do [ -e "$ROOT/$part" ] || ln -s "$BUCKET/$part" "$ROOT/$part"; done
for part in "${RUNTIME%.zip}.sh" "$RUNTIME"; do [ -f "$part" ] || { cp "$BUCKET/${part#"$ROOT"/}" "$part.part.$$" && mv "$part.part.$$" "$part"; } || exit 1; done
[ ! -e "$BUCKET/runs/$ID/cancel.json" ] || { echo "the run was cancelled before it began here"; exit 0; }
cp -Rp "$BUCKET/runs/$ID" "$ROOT/runs/" || exit 1
if [ -e "$ROOT/runs/$ID/gang.key" ]; then  # each machine sends its own shards when it can: their times say nothing
    find "$ROOT/runs/$ID" -name '*.distcp' -exec touch -t 200001010000 {} +
fi
node=${JOB_COMPLETION_INDEX:-${NODE_RANK:-0}} marks="$ROOT/.marks.$ID.$$"
mkdir -p "$marks" && touch "$marks/events.last" "$marks/files.last" && sleep 1  # a file's time may be a whole second: what comes now is newer
part="runs/$ID" && [ "$node" = 0 ] || part="runs/$ID/checkpoints"  # what this machine keeps

news() {  # what is newer than the mark $1 and of the kinds $2
    (cd "$ROOT" && find "$part" -type f -newer "$marks/$1.last" \( ! -name '.*' -o -name .metadata \)) | LC_ALL=C sed \
        -e 's|^runs/[^/]*/result[.]json$|0&|' -e t -e 's|^runs/[^/]*/logs/|0&|' -e t -e 's|^runs/[^/]*/events/|1&|' -e t -e 's|^.*/[.]metadata$|4&|' -e t \
        -e 's|^.*/meta[.]pt$|5&|' -e t -e 's|^runs/[^/]*/checkpoints/|3&|' -e t -e 's|^|2|' | LC_ALL=C sort | grep "^$2" | cut -c2-
}
copy() {  # the files of the list; where the mark $1 has one as it was at a moment, that one; what fails is copied again
    while IFS= read -r file; do
        [ -n "$file" ] || continue
        [ -d "$BUCKET/${file%/*}" ] || mkdir -p "$BUCKET/${file%/*}"
        from="$marks/$1/$file" && [ -e "$from" ] || from="$ROOT/$file"
        cp "$from" "$BUCKET/$file" || touch "$marks/$1.failed"
    done
}
copied() { if [ -e "$marks/$1.failed" ]; then rm -f "$marks/$1.failed"; else mv "$marks/$1.next" "$marks/$1.last"; fi; }
copy_events() {  # as they are now, and seen after what they tell of: the lines of the logs, the result
    [ -d "$ROOT/$part" ] || return 0
    touch "$marks/events.next" && sleep "$1"
    now=$(news events 1)
    rm -rf "$marks/events"
    printf '%s\n' "$now" | while IFS= read -r file; do
        if ! { mkdir -p "$marks/events/${file%/*}" && cp "$ROOT/$file" "$marks/events/$file"; }; then
            rm -f "$marks/events/$file"  # the disk is full
        fi
    done 2>/dev/null
    news events 0 | copy events
    printf '%s\n' "$now" | copy events
    copied events
}
copy_files() {
    [ -d "$ROOT/$part" ] || return 0
    touch "$marks/files.next" && sleep "$1"
    news files '[2-5]' | copy files
    copied files
}

fetch_cancel() { [ -e "$ROOT/runs/$ID/cancel.json" ] || [ ! -e "$BUCKET/runs/$ID/cancel.json" ] || cp "$BUCKET/runs/$ID/cancel.json" "$ROOT/runs/$ID/cancel.json"; }
sh "$ROOT/runs/$ID/start.sh" &
worker=$!
trap 'fetch_cancel; kill -TERM "$worker" 2>/dev/null' TERM INT
events=; files=
while kill -0 "$worker" 2>/dev/null; do
    kill -0 "${events:-x}" 2>/dev/null || { copy_events 1 & events=$!; }
    kill -0 "${files:-x}" 2>/dev/null || { copy_files 1 & files=$!; }
    fetch_cancel
    sleep "${FSDL_UPLINK_SECONDS:-2}" &
    wait $!
done
wait "$worker"
status=$?
[ -z "$events" ] || wait "$events"
copy_events 0
[ -z "$files" ] || wait "$files"
copy_files 0
copy_events 0
copy_files 0
exit "$status"
