#!/bin/bash
# slurm_cluster.sh install|up|down|purge|status|env|exec CMD...|kill-node N|start-node N|controller start|stop|kill
# One real Slurm cluster (22.05, Debian 12 packages) on one host: no systemd, no cgroups, loopback only, fake GPUs.
# Idempotent: `up` on a running cluster only starts what is missing. All state is under $SLURM_BASE.
# Lists of words are split on purpose.
# shellcheck disable=SC2086,SC2206,SC2015
set -euo pipefail
B=${SLURM_BASE:-${TMPDIR:-/tmp}/slurm-test-cluster}
NODES=${SLURM_NODES:-4}; GPUS=${SLURM_GPUS:-8}; CPUS=${SLURM_CPUS:-32}; MEM=${SLURM_MEM:-64000}; CLUSTER=${SLURM_CLUSTER:-demo}
P=${SLURM_PORT0:-17000}           # P slurmctld, P+1 slurmdbd, P+2 mariadb, P+3 slurmrestd, P+100+i slurmd of node i
export SLURM_CONF=$B/etc/slurm.conf
export PATH=$PATH:/usr/sbin:/sbin
T0=$(date +%s%N); tick() { local ms=$(( ($(date +%s%N)-T0)/1000000 )); printf '%3d.%03ds  %s\n' $((ms/1000)) $((ms%1000)) "$*"; }
palive() { case "$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null)" in ""|Z*|X*) return 1;; esac; }   # a zombie counts as dead (lazy pid 1)
alive() { local p; p=$(cat "$1" 2>/dev/null) && [ -n "$p" ] && palive "$p"; }
wait_for() { local n=$1 k; shift; for ((k=0;k<n*20;k++)); do "$@" >/dev/null 2>&1 && return 0; sleep 0.05; done; echo "timeout: $*" >&2; "$@" >&2; return 1; }

install() {
  local need=() p guard="" lock; exec {lock}>"${TMPDIR:-/tmp}/slurm-test-install.lock"; flock "$lock"  # tests ask at the same time
  for p in slurmctld slurmd slurm-client slurmdbd munge mariadb-server slurm-wlm-jwt-plugin slurmrestd ${SLURM_EXTRA_PKGS:-}; do dpkg-query -W -f='${Status}' $p 2>/dev/null | grep -q 'ok installed' || need+=($p); done
  [ ${#need[@]} = 0 ] && { exec {lock}>&-; return 0; }
  # without this, the maintainer scripts would start mariadb/munge/sshd (sshd on 0.0.0.0:22) on a host without systemd
  if [ ! -e /usr/sbin/policy-rc.d ]; then printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d; guard=1; fi
  apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
  [ -z "$guard" ] || rm -f /usr/sbin/policy-rc.d
  exec {lock}>&-
  tick "apt install ${need[*]}"
}
conf() {
  mkdir -p "$B"
  if [ "${SLURM_TMPFS:-1}" = 1 ] && ! mountpoint -q "$B" && [ ! -d "$B/db" ]; then mount -t tmpfs -o size=2g,mode=755 slurmtest "$B" 2>/dev/null || true; fi
  mkdir -p "$B"/{etc,run,log,db,ctld,dev,spool}; chmod 755 "$B" "$B"/{etc,run,log,dev}
  local g; for ((g=0;g<GPUS;g++)); do ln -sfn /dev/null "$B/dev/gpu$g"; done
  [ -s "$B/etc/munge.key" ] || { (umask 077; head -c 128 /dev/urandom > "$B/etc/munge.key"); }
  [ -s "$B/etc/jwt.key" ]   || { (umask 077; head -c 32 /dev/urandom > "$B/etc/jwt.key"); }
  # NoInAddrAny binds to what gethostname() resolves to. Only usable when that is a loopback address;
  # otherwise daemons are started in a UTS namespace whose hostname is "localhost" (see run_d).
  UTS=; case "$(getent ahostsv4 "$(hostname)" | awk 'NR==1{print $1}')" in 127.*) ;; *) UTS=1;; esac
  cat > "$B/etc/slurm.conf.new" <<C
ClusterName=$CLUSTER
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$P
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$B/run/munge.sock,cred_expire=8
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=$B/etc/jwt.key
CredType=cred/munge
StateSaveLocation=$B/ctld
SlurmdSpoolDir=$B/spool/%n
SlurmctldPidFile=$B/run/slurmctld.pid
SlurmdPidFile=$B/run/slurmd.%n.pid
SlurmctldLogFile=$B/log/slurmctld.log
SlurmdLogFile=$B/log/slurmd.%n.log
SlurmctldDebug=info
SlurmdDebug=info
DebugFlags=NO_CONF_HASH
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
MpiDefault=none
MailProg=/bin/true
PropagateResourceLimits=NONE
ReturnToService=1
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
RequeueExit=85
EnforcePartLimits=ALL
MinJobAge=${SLURM_MINJOBAGE:-120}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,bf_resolution=1,bf_window=2880,bf_continue,bf_max_job_test=1000,sched_min_interval=0,sched_interval=1,batch_sched_delay=0
PreemptType=preempt/qos
PreemptMode=REQUEUE
PriorityType=priority/multifactor
PriorityDecayHalfLife=1-0
PriorityCalcPeriod=1
PriorityWeightAge=1000
PriorityWeightFairshare=10000
PriorityWeightQOS=10000
PriorityWeightPartition=1000
SlurmctldTimeout=10
SlurmdTimeout=8
KillWait=${SLURM_KILLWAIT:-15}
MessageTimeout=4
TCPTimeout=1
InactiveLimit=0
WaitTime=0
BatchStartTimeout=30
UnkillableStepTimeout=15
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((P+1))
AccountingStoragePass=$B/run/munge.sock
AccountingStorageEnforce=associations,limits,qos,safe
AccountingStorageTRES=gres/gpu,gres/gpu:a100
AccountingStoreFlags=job_comment,job_script,job_env
NodeName=DEFAULT CPUs=$CPUS Boards=1 SocketsPerBoard=2 CoresPerSocket=$((CPUS/2)) ThreadsPerCore=1 RealMemory=$MEM Gres=gpu:a100:$GPUS State=UNKNOWN
NodeName=n[1-$NODES] NodeHostname=localhost NodeAddr=127.0.0.1 Port=$([ "$NODES" = 1 ] && echo $((P+101)) || echo $((P+101))-$((P+100+NODES)))
PartitionName=DEFAULT Nodes=ALL MaxTime=7-0 DefaultTime=10:00 State=UP OverSubscribe=NO DefMemPerCPU=${SLURM_MEM_PER_CPU:-2000} TRESBillingWeights=CPU=0,Mem=0,GRES/gpu=1.0
PartitionName=train Default=YES PriorityTier=1
PartitionName=inter PriorityTier=10 MaxTime=4:00:00
C
  [ -n "${SLURM_CONF_SED:-}" ] && sed -i -E "$SLURM_CONF_SED" "$B/etc/slurm.conf.new"
  mv "$B/etc/slurm.conf.new" "$B/etc/slurm.conf"
  cat > "$B/etc/gres.conf" <<C
AutoDetect=off
NodeName=n[1-$NODES] Name=gpu Type=a100 File=$B/dev/gpu[0-$((GPUS-1))] Flags=nvidia_gpu_env
C
  (umask 077; cat > "$B/etc/slurmdbd.conf" <<C
AuthType=auth/munge
AuthInfo=socket=$B/run/munge.sock
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=$B/etc/jwt.key
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$((P+1))
CommunicationParameters=NoInAddrAny
SlurmUser=root
PidFile=$B/run/slurmdbd.pid
LogFile=$B/log/slurmdbd.log
DebugLevel=info
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$((P+2))
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
C
  )
}
run_d() { if [ -n "$UTS" ]; then unshare --uts sh -c 'hostname localhost; exec "$@"' sh "$@"; else "$@"; fi; }
up() {
  exec 9>"$B.lock"; flock 9
  install; conf; tick conf
  if ! alive "$B/run/munged.pid"; then
    munged --socket="$B/run/munge.sock" --key-file="$B/etc/munge.key" --pid-file="$B/run/munged.pid" --log-file="$B/log/munged.log" --seed-file="$B/run/munged.seed" --num-threads=10 9>&-
    tick munged
  fi
  if ! alive "$B/run/mariadb.pid"; then
    if [ ! -d "$B/db/mysql" ]; then
      chown mysql "$B/db"
      # two at once fail: they use one file of /tmp
      flock "${TMPDIR:-/tmp}/fsdl-mariadb-install.lock" mariadb-install-db --no-defaults --user=mysql --datadir="$B/db" --auth-root-authentication-method=socket --skip-test-db --skip-name-resolve --innodb-log-file-size=16M >"$B/log/mariadb-install.log" 2>&1 || { cat "$B/log/mariadb-install.log" >&2; return 1; }
      tick mariadb-install-db
    fi
    mkdir -p "$B/run/db"; chown mysql "$B/run/db"
    setsid mariadbd --no-defaults --user=mysql --datadir="$B/db" --socket="$B/run/db/mysql.sock" --pid-file="$B/run/db/mariadb.pid" --bind-address=127.0.0.1 --port=$((P+2)) \
      --innodb-buffer-pool-size=128M --innodb-log-file-size=16M --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=0 --skip-log-bin --skip-name-resolve --performance-schema=OFF >"$B/log/mariadb.log" 2>&1 </dev/null 9>&- &
    echo $! > "$B/run/mariadb.pid"
    wait_for 30 mariadb --no-defaults -S "$B/run/db/mysql.sock" -u root -e "create database if not exists slurm_acct; create user if not exists slurm@'127.0.0.1' identified by 'slurm'; grant all on slurm_acct.* to slurm@'127.0.0.1';"
    tick mariadbd
  fi
  if ! alive "$B/run/slurmdbd.pid"; then rm -f "$B/run/slurmdbd.pid"; run_d slurmdbd 9>&-; wait_for 30 sacctmgr -n -i show cluster; tick slurmdbd; fi
  if ! alive "$B/run/slurmctld.pid"; then
    [ -e "$B/ctld/clustername" ] || { sacctmgr -i -Q add cluster "$CLUSTER" >/dev/null 2>&1 || true; tick "add cluster"; }
    rm -f "$B/run/slurmctld.pid"; run_d slurmctld 9>&-; wait_for 30 sh -c 'scontrol ping | grep -q "is UP"'; tick slurmctld
  fi
  local i; for ((i=1;i<=NODES;i++)); do alive "$B/run/slurmd.n$i.pid" || start_node n$i; done; tick slurmds
  wait_for 30 sh -c "[ \$(sinfo -h -N -p train -t idle,mix,alloc -o %N | sort -u | wc -l) -ge $NODES ]"; tick "all $NODES nodes up"
}
start_node() { mkdir -p "$B/spool/$1"; rm -f "$B/run/slurmd.$1.pid"; run_d slurmd -N "$1" 9>&-; }
# power-fail node $1: slurmd, its slurmstepds and their tasks, all at once, by pid
kill_node() {
  local f p pp victims=
  for f in $(grep -lzx "SLURMD_NODENAME=$1" /proc/[0-9]*/environ 2>/dev/null | xargs -r grep -lzx "SLURM_CONF=$SLURM_CONF" 2>/dev/null); do
    p=${f#/proc/}; p=${p%/environ}; pp=$(awk '/^PPid/{print $2}' /proc/$p/status 2>/dev/null || true); victims+=" $p"
    case "$(tr '\0' ' ' < /proc/${pp:-0}/cmdline 2>/dev/null || true)" in slurmstepd:*) victims+=" $pp";; esac
  done
  kill -KILL "$(cat "$B/run/slurmd.$1.pid")" $victims 2>/dev/null || true
}
stop1() { local p k; p=$(cat "$1" 2>/dev/null) || return 0; [ -n "$p" ] && palive "$p" || { rm -f "$1"; return 0; }; kill -TERM "$p" 2>/dev/null || true
  for ((k=0;k<500;k++)); do palive "$p" || { rm -f "$1"; return 0; }; sleep 0.02; done; kill -KILL "$p" 2>/dev/null || true; rm -f "$1"; }
down() {
  [ -e "$SLURM_CONF" ] || return 0
  if alive "$B/run/slurmctld.pid"; then squeue -h -o %A | xargs -r scancel -Q 2>/dev/null || true; local k; for ((k=0;k<60;k++)); do [ -z "$(squeue -h -t R,CG,S -o %A 2>/dev/null)" ] && break; sleep .05; done; fi
  local f; for f in "$B"/run/slurmd.n*.pid; do stop1 "$f" & done; wait
  stop1 "$B/run/slurmrestd.pid"; stop1 "$B/run/slurmctld.pid"; tick "slurmds, slurmctld down"; stop1 "$B/run/slurmdbd.pid"; tick slurmdbd
  stop1 "$B/run/mariadb.pid"; tick mariadb; stop1 "$B/run/munged.pid"; tick munged
}
purge() { down; if mountpoint -q "$B"; then umount "$B"; fi; rm -rf "$B" "$B.lock"; }
UTS=; case "$(getent ahostsv4 "$(hostname)" | awk 'NR==1{print $1}')" in 127.*) ;; *) UTS=1;; esac
case ${1:-status} in
  install) install;; up) up;; down) down;; purge) purge;; conf) conf;; env) echo "export SLURM_CONF=$SLURM_CONF";;
  exec) shift; run_d "$@";;      # run a client (srun/salloc) with the daemons' view of the hostname
  kill-node) kill_node "$2";; start-node) start_node "$2";;
  controller) case $2 in
      stop) stop1 "$B/run/slurmctld.pid";; kill) kill -KILL "$(cat "$B/run/slurmctld.pid")";;
      start) rm -f "$B/run/slurmctld.pid"; run_d slurmctld; wait_for 30 sh -c 'scontrol ping | grep -q "is UP"';; esac;;
  status) for f in "$B"/run/*.pid; do echo "${f##*/} $(cat "$f") $(alive "$f" && echo up || echo dead)"; done; sinfo;;
esac
