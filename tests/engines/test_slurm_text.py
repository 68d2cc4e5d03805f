"""Slurm's answers as 22.05.8 prints them and as 23.02 to 25.05 document them: one reading for all."""

import pytest

from fsdl_dev.engines.slurm.client import parse_submitted, refusal
from fsdl_dev.engines.slurm.parse import (
    count_gpus,
    in_line,
    parse_lives,
    parse_queue,
    parse_records,
    parse_sinfo,
    queue_places,
)
from fsdl_dev.engines.slurm.states import (
    explain_reason,
    find_limit,
    parse_limit_word,
    parse_limits,
    say_limit,
)
from fsdl_dev.engines.transport.shell import Answer

# every reason that Slurm 25.05's own table holds (job_state_reason.c) and those that it writes as sentences
PLAIN_WORDS = """
     None Prolog Priority Dependency Resources PartitionNodeLimit PartitionTimeLimit PartitionDown
    PartitionInactive JobHeldAdmin JobHeldUser BeginTime Licenses AssociationJobLimit AssociationResourceLimit
    AssociationTimeLimit Reservation ReqNodeNotAvail FrontEndDown SchedDefer NodeDown BadConstraints
    SystemFailure JobLaunchFailure NonZeroExitCode RaisedSignal TimeLimit InactiveLimit InvalidAccount
    InvalidQOS QOSUsageThreshold QOSJobLimit QOSResourceLimit QOSTimeLimit Cleaning QOSNotAllowed
    AccountNotAllowed DependencyNeverSatisfied QOSMinCpuNotSatisfied JobHoldMaxRequeue JobArrayTaskLimit
    BurstBufferResources BurstBufferStageIn BurstBufferOperation PowerNotAvail PowerReserved DeadLine
    PartitionConfig AccountingPolicy FedJobLock OutOfMemory MaxMemPerLimit ReservationDeleted
    ReservationInvalid Constraints
ReservationDeleted ReservationInvalid Constraints""".split()
LIMIT_WORDS = """
     QOSGrpCpuLimit QOSGrpCPUMinutesLimit QOSGrpCPURunMinutesLimit QOSGrpJobsLimit QOSGrpMemLimit
    QOSGrpNodeLimit QOSGrpSubmitJobsLimit QOSGrpWallLimit QOSMaxCpuPerJobLimit QOSMaxCpuMinutesPerJobLimit
    QOSMaxNodePerJobLimit QOSMaxWallDurationPerJobLimit QOSMaxCpuPerUserLimit QOSMaxJobsPerUserLimit
    QOSMaxNodePerUserLimit QOSMaxSubmitJobPerUserLimit AssocGrpCpuLimit AssocGrpCPUMinutesLimit
    AssocGrpCPURunMinutesLimit AssocGrpJobsLimit AssocGrpMemLimit AssocGrpNodeLimit AssocGrpSubmitJobsLimit
    AssocGrpWallLimit AssocMaxJobsLimit AssocMaxCpuPerJobLimit AssocMaxCpuMinutesPerJobLimit
    AssocMaxNodePerJobLimit AssocMaxWallDurationPerJobLimit AssocMaxSubmitJobLimit AssocGrpUnknown
    AssocGrpUnknownMinutes AssocGrpUnknownRunMinutes AssocMaxUnknownPerJob AssocMaxCpuPerNode
    AssocGrpMemMinutes AssocGrpMemRunMinutes AssocMaxMemPerJob AssocMaxMemPerNode AssocMaxMemMinutesPerJob
    AssocGrpNodeMinutes AssocGrpNodeRunMinutes AssocMaxNodeMinutesPerJob AssocGrpEnergy AssocGrpEnergyMinutes
    AssocMaxEnergyPerJob AssocGrpGRES AssocGrpGRESMinutes AssocGrpGRESRunMinutes AssocMaxGRESPerJob
    AssocMaxGRESPerNode AssocMaxGRESMinutesPerJob AssocGrpLicense AssocMaxLicensePerJob AssocGrpBB
    AssocGrpBBMinutes AssocGrpBilling AssocGrpBillingMinutes AssocGrpBillingRunMinutes AssocMaxBillingPerJob
    QOSGrpUnknown QOSMaxCpuPerNode QOSGrpMemoryMinutes QOSGrpMemoryRunMinutes QOSMaxMemoryPerJob
    QOSMaxMemoryPerNode QOSMaxMemoryPerUser QOSMaxMemoryMinutesPerJob QOSMinMemory QOSGrpNodeMinutes
    QOSMaxNodeMinutesPerJob QOSMinNode QOSGrpEnergy QOSMaxEnergyPerUser QOSGrpGRES QOSGrpGRESMinutes
    QOSGrpGRESRunMinutes QOSMaxGRESPerJob QOSMaxGRESPerNode QOSMaxGRESPerUser QOSMaxGRESMinutesPerJob
    QOSMinGRES QOSGrpLicense QOSMaxLicensePerUser QOSGrpBB QOSMaxBBPerUser QOSGrpBilling QOSGrpBillingMinutes
    QOSMaxBillingPerUser QOSMinBilling MaxBBPerAccount MaxCpuPerAccount MaxEnergyPerAccount MaxGRESPerAccount
    MaxNodePerAccount MaxLicensePerAccount MaxMemoryPerAccount MaxJobsPerAccount MaxSubmitJobsPerAccount
    MaxBillingPerAccount
MaxJobsPerAccount MaxSubmitJobsPerAccount MaxBillingPerAccount""".split()


@pytest.mark.parametrize("word", PLAIN_WORDS)
def test_each_word_has_its_sentence(word):
    text, fix = explain_reason(word, "17")
    assert not text.startswith("Slurm says") and f"{word}" != text and "{" not in text + fix


@pytest.mark.parametrize("word", LIMIT_WORDS)
def test_each_limit_word_is_taken_apart(word):
    parsed = parse_limit_word(word)
    assert parsed and parsed.field and parsed.said
    assert parsed.owner == ("account" if word.startswith("Assoc") else "qos")
    assert ("Mins" in parsed.field) == ("Minutes" in word) and parsed.field.startswith("Grp") == (
        "Grp" in word
    )
    text, fix = explain_reason(word)
    assert not text.startswith("Slurm says") and word not in text


@pytest.mark.parametrize(
    "sentence, told",
    [
        ("ReqNodeNotAvail, UnavailableNodes:n[3-4]", "n[3-4]"),
        ("ReqNodeNotAvail, May be reserved for other job", "reserved"),
        ("ReqNodeNotAvail, Reserved for maintenance", "maintenance"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "down",
        ),
        ("launch failed requeued held", "held"),
        ("job requeued in held state", "held"),
    ],
)
def test_sentences_of_several_versions(sentence, told):
    "With underscores, as squeue prints them from some versions on, too."
    for text in (sentence, sentence.replace(" ", "_")):
        row = parse_queue(f"14|14|N/A|PENDING|2000|train|zoe|lab|normal|N/A|1||1795275306|{text}|a")[0]
        assert told in explain_reason(row.reason)[0].lower().replace("n[3-4]", "n[3-4]")


def test_the_queue_of_newer_versions():
    """From 23.11 on a state may carry a mark, and numbers of nodes a unit; what is asked for by its letter
    stays in place.
    """
    rows = parse_queue(
        "901_[0-999%50]|901|0-999%50|PENDING|4294901500|gpu,gpu-long|zoe|lab|normal|1795290000|4||1795275467|Priority|sweep.20261121-075212345\n"
        "902|902|N/A|COMPLETING|1|gpu|zoe|(null)|N/A|1795275468|1K|n[001-002]|1795275467|None|x"
    )
    assert (
        len(rows[0].tasks) == 1000
        and rows[0].partitions == ("gpu", "gpu-long")
        and rows[0].priority == 4294901500
        and in_line(rows[0])
    )
    assert rows[1].nodes == ("n001", "n002") and rows[1].state == "COMPLETING"


def test_places_count_those_who_stand_in_line():
    text = "".join(
        f"{n}|{n}|N/A|PENDING|{priority}|{partition}|u|a|q|N/A|1||{1000 + n}|{reason}|x\n"
        for n, priority, partition, reason in [
            (1, 10, "train", "Priority"),
            (2, 30, "train", "Resources"),
            (3, 50, "train", "AssocGrpGRES"),
            (4, 40, "other", "Priority"),
            (5, 0, "train", "JobHeldUser"),
            (6, 20, "other,train", "Priority"),
            (7, 20, "train", "Dependency"),
            (8, 10, "train", "Priority"),
        ]
    )
    queue = parse_queue(text)
    places = queue_places(queue)
    assert [places.get(row.id) for row in queue] == [3, 1, None, 1, None, 2, None, 4]


@pytest.mark.parametrize(
    "text, count",
    [
        ("billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=1", 4),
        ("cpu=2,mem=8G,node=1,gres/gpu:h100=2", 2),
        ("gres/gpu:4", 4),
        ("gres:gpu:a100:2", 2),
        ("gpu:h100:8(S:0-1)", 8),
        ("gpu:a100:4(S:0),gpu:v100:4(S:1),nvme:2", 8),
        ("gpu:8(IDX:0-7)", 8),
        ("gpu:a100:3(IDX:0,2,5)", 3),
        ("shard:16,gpu:1", 1),
        ("mps:400", 0),
        ("N/A", 0),
        ("", 0),
        ("(null)", 0),
        ("gpu:(null):0(IDX:N/A)", 0),
    ],
)
def test_gpus_are_counted_once(text, count):
    assert count_gpus(text) == count


def test_lives_of_newer_versions():
    "24.05 writes REQUEUED for a life that was requeued by hand, and truncated words end in +."
    lives = parse_lives(
        "77|REQUEUED|0:0|600|gres/gpu:h100=8,gres/gpu=8|n[1-2]|1795275481|1795276081|a.1\n77|NODE_FAIL|1:0|60|gres/gpu=8|n1|1795276181|1795276241|a.1\n77|COMPLETED|0:0|100|gres/gpu=8|n[1-2]|1795276341|1795276441|a.1\n77_12|CANCELLED"
        " by 1001|0:15|0||None assigned|Unknown|1795276441|a|b\n77_[13-20%4]|PENDING|0:0|0||None"
        " assigned|Unknown|Unknown|a\nsacct: warning: something\n"
    )
    assert [life.state for life in lives] == ["REQUEUED", "NODE_FAIL", "COMPLETED", "CANCELLED", "PENDING"]
    assert (
        sum(life.gpu_seconds for life in lives[:3]) == 8 * 760
        and lives[3].by == "1001"
        and lives[3].name == "a|b"
        and lives[4].id == "77_[13-20%4]"
    )


@pytest.mark.parametrize(
    "state, usable",
    [
        ("idle", True),
        ("mixed", True),
        ("mixed-", True),
        ("allocated", True),
        ("planned", True),
        ("completing", True),
        ("idle~", True),
        ("idle*", False),
        ("down*", False),
        ("drained", False),
        ("draining@", False),
        ("maint", False),
        ("inval", False),
        ("unknown*", False),
        ("powering_down", False),
        ("reboot^", False),
        ("drained$", False),
        ("fail", False),
        ("blocked", False),
    ],
)
def test_node_states_and_their_marks(state, usable):
    node = parse_sinfo(f"n1|train*|{state}|0/32/0/32|64000+|gpu:h100:8(S:0-1)|gpu:h100:2(IDX:0-1)|none|\n")[0]
    assert (
        node.usable is usable
        and node.partitions == ("train",)
        and node.gpus_free == (6 if usable else 0)
        and node.memory == 64000
    )


NEWER = """\
Current Association Manager state

Association Records

ClusterName=demo Account=root UserName= Partition= Priority=0 ID=1
    ParentAccount= Lft=1 DefAssoc=No
    GrpTRES=cpu=N(64),gres/gpu=64(60)
ClusterName=demo Account=lab UserName= Partition= Priority=0 ID=4
    ParentAccount=root(1) Lft=2 DefAssoc=No
    GrpTRES=cpu=N(1),gres/gpu=16(8),gres/gpu:h100=N(8)
    GrpTRESMins=gres/gpu=60000(59990)
ClusterName=demo Account=lab UserName=zoe(1001) Partition= Priority=0 ID=6
    ParentAccount= Lft=3 DefAssoc=Yes
    GrpTRES=cpu=N(1),gres/gpu=8(8)
    MaxJobs=4(4) MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
ClusterName=demo Account=lab UserName=max(1002) Partition= Priority=0 ID=7
    GrpTRES=gres/gpu=1(1)

QOS Records

QOS=normal(1)
    MaxTRESPJ=gres/gpu=32
    Account Limits
      lab
        MaxJobsPA=10(3) MaxTRESPA=gres/gpu=40(8)
    User Limits
      zoe(1001)
        MaxJobsPU=2(2) MaxSubmitJobsPU=N(3)
        MaxTRESPU=cpu=N(0),gres/gpu=8(8)
      1002
        MaxJobsPU=2(1)
"""


@pytest.mark.parametrize(
    "reason, owner, most, used",
    [
        ("AssocGrpGRES", "user", 8, 8),
        ("AssocGrpGRESMinutes", "account", 60000, 59990),
        ("AssocMaxJobsLimit", "user", 4, 4),
        ("QOSMaxJobsPerUserLimit", "qos", 2, 2),
        ("QOSMaxGRESPerUser", "qos", 8, 8),
        ("MaxGRESPerAccount", "qos", 40, 8),
        ("MaxJobsPerAccount", "qos", 10, 3),
    ],
)
def test_whose_limit_it_is(reason, owner, most, used):
    word = parse_limit_word(reason)
    limit = find_limit(word, parse_limits(NEWER), "lab", "normal", "zoe", "1001")
    assert (limit.owner, limit.most, limit.used) == (owner, most, used)
    assert f"{most}" in say_limit(limit, word)[0] and f"{most - used} left" in say_limit(limit, word)[0]


@pytest.mark.parametrize(
    "said, where, told",
    [
        (
            (
                "sbatch: error: Batch job submission failed: Invalid account or account/partition combination"
                " specified"
            ),
            "account",
            "'nope'",
        ),
        (
            (
                "sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission"
                " failed: Invalid partition name specified"
            ),
            "partition",
            "no partition",
        ),
        (
            "sbatch: error: Batch job submission failed: User's group not permitted to use this partition",
            "partition",
            "not for you",
        ),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", "qos", "QOS"),
        (
            "sbatch: error: Batch job submission failed: Invalid feature specification",
            "constraint",
            "feature",
        ),
        (
            "sbatch: error: Batch job submission failed: Requested reservation is invalid",
            "reservation",
            "reservation",
        ),
        (
            "sbatch: error: Batch job submission failed: Access denied to requested reservation",
            "reservation",
            "reservation",
        ),
        (
            (
                "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or"
                " exceeds some limit)"
            ),
            "--time",
            "longer",
        ),
        ("sbatch: error: Batch job submission failed: Node count specification invalid", "--nodes", "nodes"),
        (
            (
                "sbatch: error: CPU count per node can not be satisfied\nsbatch: error: Batch job submission"
                " failed: Requested node configuration is not available"
            ),
            "--gpus",
            "No node",
        ),
        (
            (
                "sbatch: error: Memory specification can not be satisfied\nsbatch: error: Batch job"
                " submission failed: Requested node configuration is not available"
            ),
            "mem",
            "memory",
        ),
        (
            "sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification",
            "gres",
            "GPUs",
        ),
        (
            "sbatch: error: Batch job submission failed: Invalid Trackable RESource (TRES) specification",
            "gres",
            "GPUs",
        ),
        (
            (
                "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job"
                " violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
            ),
            "account",
            "limit",
        ),
        ("sbatch: error: Batch job submission failed: Job dependency problem", "--after", "wait for"),
        (
            "sbatch: unrecognized option '--exclusiv'\nTry \"sbatch --help\" for more information",
            "extra",
            "options",
        ),
    ],
)
def test_refusals_name_the_field(said, where, told):
    error = refusal(
        Answer(1, "", said),
        {
            "account": "nope",
            "partition": None,
            "qos": "x",
            "constraint": "c",
            "reservation": "r",
            "gres": "gpu",
        },
        "lab",
    )
    assert error.where.endswith(where) and told in error.what and error.fix


def test_what_sbatch_prints_is_a_number():
    assert (
        parse_submitted("17\n") == ("17", "")
        and parse_submitted("Some site's greeting\n17_4 sweep.1\n") == ("17_4", "sweep.1")
        and parse_submitted("sbatch: error: x\n") == ("", "")
    )


def test_records():
    newer = parse_records(
        "ReservationName=maint StartTime=2026-11-21T16:35:06 EndTime=2026-11-21T17:35:06 Duration=01:00:00\n "
        "  Nodes=n3 NodeCnt=1 Comment=(null)"
    )
    assert newer[0]["Duration"] == "01:00:00" and newer[1]["NodeCnt"] == "1"
