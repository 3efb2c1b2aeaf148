#!/bin/sh
# A session on a GPU: sh scripts/gpu_session.sh [probe] [run] [profiles] [inside]; the first three unless named
# (docs/gpu.md).
#
# Needs torch, numpy and click (inside: megatron-core); no network, no installed ppsim. Ends within LIMIT seconds (default 540), whatever a
# step does, and packs what there is into OUT/gpu-results.tar.gz. Each part goes on where it was stopped: what was
# measured stays in WORK (default ./gpu-results; OUT is the same unless given). DEVICE=cpu SUITE=smoke tries it without
# a GPU, PROBE_LIMIT gives its probe more seconds. PYTHON is python3.
set -u
begin=$(date +%s)
out=${OUT:-}
case $out in '' | /*) ;; *) out=$PWD/$out ;; esac
cd "$(dirname "$0")/.." || exit 2
work=${WORK:-gpu-results}
out=${out:-$work}
device=${DEVICE:-cuda}
suite=${SUITE:-standard}
python=${PYTHON:-python3}
packing=40 # seconds for the results, and for a step that must be killed
end=$((begin + ${LIMIT:-540} - packing))
failed=""
logger=""
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1
mkdir -p "$work/profiles" "$out" || exit 2

left() { echo $((end - $(date +%s))); }

step() { # NAME, the most SECONDS, command
    name=$1 most=$2
    shift 2
    [ "$(left)" -gt "$most" ] || most=$(left)
    echo
    echo "== $name: $*"
    if [ "$most" -lt 5 ]; then
        echo "left for the next call: the time is over"
        return 0
    fi
    timeout -s INT -k 10 "$most" "$@" >"$work/$name.log" 2>&1
    code=$?
    tail -n 30 "$work/$name.log"
    [ $code -eq 0 ] || failed="$failed $name (exit $code)"
    return 0
}

finish() {
    code=$?
    trap - EXIT INT TERM
    [ -z "$logger" ] || kill "$logger" 2>/dev/null
    if [ -s "$work/device.csv" ]; then
        set -- "$work"/profiles/*.json
        [ -e "$1" ] || shift
        echo
        timeout 10 "$python" scripts/device_log.py "$work/device.csv" "$@"
    fi
    tar -czf "$out/.packing" -C "$work" --exclude gpu-results.tar.gz --exclude .packing . &&
        mv "$out/.packing" "$out/gpu-results.tar.gz"
    echo
    echo "$out/gpu-results.tar.gz: $(wc -c <"$out/gpu-results.tar.gz") bytes, after $(($(date +%s) - begin)) s"
    [ -z "$failed" ] || echo "failed:$failed"
    [ -z "$failed" ] || [ $code -ne 0 ] || code=1
    exit $code
}
trap finish EXIT
trap 'exit 130' INT TERM

probe() {
    most=${PROBE_LIMIT:-60}
    step probe "$most" "$python" scripts/gpu_probe.py "$work/probe" --device "$device" --seconds $((most - 5))
}

run() {
    set --
    [ "$device" = cuda ] || set -- --partitions 2 --steps 2 --num-microbatches 4
    step spins 70 "$python" benchmarks/partitions.py --device "$device" "$@" --record "$work/spins.json"
}

profiles() {
    for number in 1 2 3; do # a process that an error in a kernel has ended is begun again
        limit=$(($(left) - 20))
        [ $limit -gt 0 ] || limit=1
        step "profiles-$number" 9999 "$python" -m ppsim profile --suite "$suite" --device "$device" \
            --time-limit "$limit" -o "$work/profiles"
        grep -q "answers no more" "$work/profiles-$number.log" 2>/dev/null || break
    done
    set -- "$work"/profiles/*.json
    [ ! -e "$1" ] || step check 20 "$python" scripts/check_profile.py "$@"
}

inside() { # chunks of a model of 7 billion parameters, as Megatron-core builds them
    set -- --layers 32 --hidden 4096 --heads 32 --pp 4 --vpp 2 --seq-len 4096
    [ "$device" = cuda ] || set -- --repeats 2
    step inside 200 "$python" scripts/trainers/measure_megatron.py "$@" -o "$work/chunks.json"
}

if command -v nvidia-smi >/dev/null 2>&1; then
    fields=$("$python" scripts/device_log.py --fields)
    nvidia-smi --query-gpu="$fields" --format=csv,noheader,nounits -lms 200 >>"$work/device.csv" 2>/dev/null &
    logger=$!
fi
[ $# -gt 0 ] || set -- probe run profiles
for part; do
    case $part in
        probe | run | profiles | inside) $part ;;
        *)
            echo "unknown part '$part': there are probe, run, profiles and inside"
            exit 2
            ;;
    esac
done
