"""Each plan of MSCCL++'s example programs has a verdict, with the reason.

Each finding was confirmed by reading the plan. Those of the zero_copy plans and of allreduce_pipeline are shown by random
orders as well, in tests/execute/test_shuffle.c; at the plan's own size with
banyan run single_node_allreduce_pipeline_2.json --no-check --size 96M --shuffle SEED, for one seed in four.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BANYAN_BUILD", ROOT / "build"))
PLANS = BUILD / "tests/plans"
BANYAN = BUILD / "bin/banyan"
SANITIZED = os.environ.get("BANYAN_SANITIZE", "")
SECONDS_MOST = 2

# Closing signals and waits are relaxed: they do not publish what a rank's store into the others' buffers wrote in this
# run, so that a caller may read its output before it is there (race), and the stores may land on what it writes next
# (reuse). All findings rest on the caller and on the relaxed pair.
RELAXED_END = "the closing signals are relaxed and do not publish the stores into the others' outputs"
# Fewer than the findings of every pair of ranks, of which a hundred of each rule are kept.
KEPT = 100

# Units that write to an input although they are not in place do it at one operation of each rank.
INPUT = "it moves data into an input though it is not in place"
NO_PACKETS = "a unit of one operation: nobody writes the packets that it reads"

VERDICTS = {
    "multi_node_allgather_8": {},
    "multi_node_allgather_tbg_4": {},
    "multi_node_reducescatter_pkt_8": {},
    "single_node_allgather_2": {},
    "single_node_allgather_nvls_zero_copy_2": {"race": 2, "why": RELAXED_END},
    "single_node_allgather_nvls_zero_copy_4": {"race": 12, "why": RELAXED_END},
    "single_node_allgather_pkt_2": {},
    "single_node_allgather_pkt_4": {},
    "single_node_allgather_pkt_rppkt_2": {},
    "single_node_allgather_pkt_rppkt_8": {},
    "single_node_allreduce_2": {},
    "single_node_allreduce_4": {},
    "single_node_allreduce_naivy_2": {},
    "single_node_allreduce_naivy_8": {},
    "single_node_allreduce_nvls_zero_copy_2": {"race": 16, "reuse": 16, "why": RELAXED_END},
    "single_node_allreduce_nvls_zero_copy_8": {"race": KEPT, "reuse": KEPT, "why": RELAXED_END},
    # Thread block 0 copies into 32 units of reused scratch without a signal that thread blocks 1 and 2 are done
    # with one: in iteration 32 it may write over what they, or the other rank's reduction, still need.
    "single_node_allreduce_pipeline_2": {
        "race": 10, "why": "from 64 MiB on, the loop goes round its scratch and nothing frees a unit"},
    "single_node_allreduce_pkt_2": {},
    "single_node_allreduce_pkt_4": {},
    "single_node_alltoall_2": {},
    "single_node_alltoall_4": {},
    "single_node_alltoall_pipeline_2": {},
    "single_node_alltoall_pipeline_8": {},
    "single_node_alltoall_ring_2": {},
    "single_node_alltoall_ring_peers_2": {},
    "unit_barrier_test_1": {},
    "unit_copy_packet_test_1": {},
    "unit_copy_test_1": {},
    "unit_flush_fuse_test_2": {},
    "unit_flush_test_2": {},
    "unit_get_fuse_test_2": {"input_written": 2, "why": INPUT},
    "unit_get_test_2": {"input_written": 2, "why": INPUT},
    "unit_pipeline_test_1": {},
    # Each rank puts its chunks crosswise into the other's at the same time: both read what the other writes.
    "unit_put_fuse_test_2": {"input_written": 2, "race": 1, "why": INPUT + "; both ranks read what the other writes"},
    "unit_put_packet_test_2": {},
    "unit_put_test_2": {"input_written": 2, "why": INPUT},
    # No flush, and no wait for anything that says the put is done: the port may read the input after the run's end.
    "unit_put_with_signal_test_2": {
        "input_written": 2, "reuse": 2, "why": INPUT + "; the port may still read its source in the next run"},
    "unit_read_put_packet_test_2": {"deadlock": 2, "why": NO_PACKETS},
    "unit_read_reduce_fuse_test_2": {},
    "unit_read_reduce_test_2": {},
    "unit_reduce_copy_packet_test_1": {"deadlock": 1, "why": NO_PACKETS},
    "unit_reduce_fuse_test_1": {},
    "unit_reduce_packets_fuse_test_1": {"deadlock": 1, "why": NO_PACKETS},
    "unit_reduce_packets_test_1": {"deadlock": 1, "why": NO_PACKETS},
    "unit_reduce_send_packet_test_2": {"deadlock": 2, "why": NO_PACKETS},
    "unit_reduce_send_test_2": {},
    "unit_reduce_test_1": {},
    "unit_relaxed_signal_wait_test_2": {},
    # Signals go out on channels 0 and 1; waits are for channels 2 and 3, which nobody signals.
    "unit_signal_wait_fuse_test_2": {"deadlock": 2, "why": "waits are on channels that nobody signals"},
    "unit_signal_wait_test_2": {},
    # Rank 0 alone stores its scratch, which has not been written, into its own and rank 1's input, and signals nobody.
    "unit_switch_broadcast_test_3": {
        "input_written": 1, "race": 1, "reuse": 1, "uninitialised": 1,
        "why": "a store of unwritten scratch into inputs, without a signal"},
    # Only thread block 0 of each rank opens and closes with a signal; blocks 1 to 3 put into the other's output unawaited.
    "unit_tbg_reduce_send_test_2": {
        "race": 6, "reuse": 6, "why": "thread blocks 1 to 3 put to the other rank without any signal"},
    "unit_tbg_copy_test_1": {},
    "unit_tbg_reduce_test_1": {},
    "unit_unpack_packet_test_1": {},
}


def check(path, *options):
    return subprocess.run([BANYAN, "check", path, *options], capture_output=True, text=True, timeout=120)


def rules_of(report):
    found = {}
    for one in report["findings"]:
        assert one["message"] and one["places"], one
        if one["level"] == "error":
            found[one["rule"]] = found.get(one["rule"], 0) + 1
    return found


def seconds_used():
    times = os.times()
    return times.children_user + times.children_system


def check_plan(path):
    before = seconds_used()
    result = check(path, "--json")
    used = seconds_used() - before
    assert result.returncode in (0, 1), f"{path.name}: {result.stderr}"
    report = json.loads(result.stdout)
    assert [one["number"] for one in report["findings"]] == list(range(len(report["findings"]))), path.name
    wanted = {rule: count for rule, count in VERDICTS[path.stem].items() if rule != "why"}
    assert rules_of(report) == wanted, f"{path.name}: {rules_of(report)}, not {wanted}"
    assert report["sound"] == (not wanted) == (result.returncode == 0), path.name
    assert SANITIZED or used < SECONDS_MOST, f"{path.name} took {used:.1f} s"
    if VERDICTS[path.stem].get("why") == RELAXED_END:
        errors = [one for one in report["findings"] if one["level"] == "error"]
        assert all(one["caller_only"] and one["relaxed_only"] for one in errors), path.name


def what_is_no_plan_exits_with_2():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "none.json"
        path.write_text("{}")
        assert check(path).returncode == 2
        assert check(path.with_name("missing.json")).returncode == 2
    assert check(PLANS / "unit_copy_test_1.json", "--size", "3").returncode == 2


def main():
    plans = sorted(PLANS.glob("*.json"))
    missing = {path.stem for path in plans} ^ set(VERDICTS)
    assert not missing, f"without a plan or a verdict: {sorted(missing)}"
    for path in plans:
        check_plan(path)
    what_is_no_plan_exits_with_2()
    print(f"{len(plans)} plans have the verdicts that are recorded")
    return 0


sys.exit(main())
