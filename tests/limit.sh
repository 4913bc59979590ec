#!/usr/bin/env bash
# Runs what cargo has built. A test program is ended after STREAMVM_TEST_LIMIT seconds (600 unless it is set), and the tests that still run
# are named on standard error; the exit code is 124 then. Benches and programs of `cargo run` have no limit.
#
# libtest names the thread of a test after the test. The kernel keeps the first 15 bytes of a thread's name, so of tests that begin alike all
# are listed; which of them it was says libtest ("has been running for over 60 seconds").
set -u
program=$1

case $program in
*/deps/* | */rustdoctest*) ;;
*) exec "$@" ;;
esac
for argument in "$@"; do
    [ "$argument" != --bench ] || exec "$@"
done

limit=${STREAMVM_TEST_LIMIT:-600}
[[ $limit =~ ^[1-9][0-9]*$ ]] || {
    echo "STREAMVM_TEST_LIMIT is \"$limit\"; set it to a number of seconds" >&2
    exit 2
}
# A shell starts what runs beside it with interrupts ignored, and the programs that tests start would inherit that.
env --default-signal=INT,QUIT "$@" <&0 &
tests=$!
# Holds none of the streams of whoever reads the output of the tests.
sleep "$limit" </dev/null >/dev/null 2>&1 &
clock=$!
trap 'kill "$tests" "$clock" 2>/dev/null; exit 130' INT TERM HUP
wait -n "$tests" "$clock"
code=$?
if kill -0 "$clock" 2>/dev/null; then
    kill "$clock"
    exit "$code"
fi

# Both may have ended.
kill -0 "$tests" 2>/dev/null || { wait "$tests"; exit; }
running=$(cat "/proc/$tests/task/"*/comm 2>/dev/null)
{
    echo "$program is not over after $limit s. Of its tests these still run (or begin like one that does):"
    timeout 10 "$program" --list --format terse 2>/dev/null | sed -n 's/: test$//p' | while IFS= read -r name; do
        grep -qxF -- "${name:0:15}" <<<"$running" && echo "    $name"
    done
    echo "Its threads are: $(tr '\n' ' ' <<<"$running")"
    echo "To give it longer, set STREAMVM_TEST_LIMIT to more seconds."
} >&2
kill -KILL "$tests"
exit 124
