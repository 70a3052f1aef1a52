"""The summary, examples and explanations of each command for `--help`."""

from compactord.catalog.registry import CATALOGS


def _of_catalogs(command: str) -> str:
    """The examples of all kinds of catalogs for a command."""
    return "\n".join(
        kind.examples[command] for kind in CATALOGS.values() if command in kind.examples
    )


# By the words of the command.
HELP = {
    "compact": f"""\
compact tables until no work is left
examples:
  compactord compact --warehouse /data/wh --table sales.orders
  compactord compact --warehouse /data/wh --table sales.orders --strategy full
  compactord compact --warehouse /data/wh --table sales.orders --partition dt=2026-11-01
  compactord compact --warehouse /data/wh --table logs.raw --option target-file-size=512mb --json
  compactord compact --warehouse /data/wh --table sales.orders --master spark://head:7077 \\
      --spark-conf spark.cores.max=16
{_of_catalogs("compact")}
  compactord compact --config compactord.yaml --catalog lake --table sales.orders
  compactord compact --config compactord.yaml --tables 'sales\\..*'
  compactord compact --config compactord.yaml --all    # one pass over all tables of serve

With --config the table's rules apply (options, append_wait, quiet_for, pick), and Spark, memory,
grace and time zone are the service's; arguments override them. Schedule windows have no effect: it
starts at once. A selection of several tables skips tables that the service does not manage, and
lists them with the reason; a table given by --table is always compacted.

exit codes: 0 done, or nothing to do; 2 arguments or configuration; 3 something failed;
4 nothing failed, but a table is not supported; 69 no engine; 77 permission denied; 1 a defect of
compactord
""",
    "plan": """\
show what compact would do, and why, without doing it
examples:
  compactord plan --warehouse /data/wh --table sales.orders
  compactord plan --warehouse /data/wh --table sales.orders --strategy full --json
  compactord plan --config compactord.yaml --catalog lake --database sales

It takes the arguments of compact. It prints what compact would merge, with the reasons, and the
left-over files of earlier runs that it would remove. `compactord why` explains one table in detail.
""",
    "inspect": """\
show a table's LSM tree against its triggers
examples:
  compactord inspect --warehouse /data/wh --table sales.orders
  compactord inspect --warehouse /data/wh --table sales.orders --json | jq .supported
  compactord inspect --warehouse /data/wh --table sales.orders --worst 5 --partition dt=2026-11-01
  compactord inspect --config compactord.yaml --catalog lake --tables 'sales\\..*' --worst 3

--worst shows the buckets with the most sorted runs first (append tables: the most small files)
""",
    "tables": """\
list all tables with their states and the reasons
examples:
  compactord tables --config compactord.yaml
  compactord tables --warehouse /data/wh
  compactord tables --config compactord.yaml --catalog lake --database sales --json

  compactord tables --url http://HOST:9464

states: active; paused (by a rule); excluded (by a pattern, or not write-only); unsupported; error;
halted (known only to a running service: --url). `compactord verify` checks that all files of a
table exist.
runs: the most sorted runs of a bucket, * from the compaction trigger on, !! above the stop trigger

exit codes: 0 listed; 2 arguments or configuration; 3 a table is in error, halted or degraded, or
the listing lacks a catalog or database; 4 nothing failed, but a table is unsupported; 77 permission
denied
""",
    "why": """\
explain one table: why it is picked or not, when next, by which rules and options
examples:
  compactord why sales.orders --config compactord.yaml --catalog lake
  compactord why sales.orders --config compactord.yaml --partition dt=2026-11-01 --bucket 3
  compactord why sales.orders --warehouse /data/wh --worst 1 --json

  compactord why sales.orders --url http://HOST:9464

It reads the table, or with --url queries a running service instead. `--url` adds halts, quarantined
buckets and running compactions; reading the table adds the deciding rule and option.

exit codes: 0 explained, in any state; 2 arguments or configuration; 3 the warehouse cannot be
read; 77 permission denied
""",
    "maintain": """\
do the maintenance that write-only jobs omit
examples:
  compactord maintain --warehouse /data/wh --table sales.orders --dry-run
  compactord maintain --config compactord.yaml --catalog lake --tables 'sales\\..*'
  compactord maintain --config compactord.yaml --all --only snapshots --only orphans --json

kinds, in this order:
  tags        create tags if the table sets tag.automatic-creation; expire tags whose own retention
              time is over
  consumers   expire consumers that have not moved for the table's consumer.expiration-time; none
              without that option
  partitions  drop partitions that are older than the table's partition.expiration-time; none
              without that option
  snapshots   expire snapshots, as `compactord expire`
  changelogs  expire changelogs that outlive their snapshots
  branches    expire the snapshots of branches
  done        mark partitions done that are idle for the table's partition.idle-time-to-done
  orphans     remove left-over files of compactord's own dead runs, as `compactord orphans`; needs
              --only orphans
  foreign     remove files of other programs, as `compactord orphans --foreign`, in tables whose
              rule has remove_foreign_files: true; needs --only foreign
--dry-run shows what each kind would do with the tables as they are now. The JSON has an object for
each kind, under its name in `kinds`, with what was or would be removed. After a kind fails, the
remaining kinds still run. With --config the rules apply as for serve, which does all this
automatically. Tables whose live files are missing or damaged are refused without --force.

exit codes: 0 done, or nothing to do; 2 arguments or configuration; 3 something failed or was
interrupted; 4 nothing failed, but a table is not supported; 77 permission denied
""",
    "expire": """\
expire snapshots of tables by their own options
examples:
  compactord expire --warehouse /data/wh --table sales.orders --dry-run
  compactord expire --warehouse /data/wh --all --dry-run     # all tables that serve would manage
  compactord expire --config compactord.yaml --catalog lake --tables 'sales\\..*'

It respects the table's snapshot.* options, tags, branches, consumers and long-lived changelogs,
exactly as serve does. --dry-run lists what would expire, with --json every file. With --config the
rules apply: their options, and expire_snapshots: off. While live files of a table are missing or
damaged, the table is refused, to keep versions to roll back to; --force overrides that.

exit codes: 0 done, or nothing to do; 2 arguments or configuration; 3 something failed or was
interrupted; 4 nothing failed, but a table is not supported; 77 permission denied
""",
    "orphans": """\
remove left-over files of compactord's own dead runs, or of any program
examples:
  compactord orphans --warehouse /data/wh --table sales.orders --dry-run
  compactord orphans --warehouse /data/wh --all --dry-run    # all tables that serve would manage
  compactord orphans --config compactord.yaml --catalog lake --all
  compactord orphans --warehouse /data/wh --table sales.orders --foreign --dry-run
  compactord orphans --warehouse /data/wh --table sales.orders --foreign --trash /data/trash

It removes files that compactord wrote (their names show it) if no snapshot, tag, branch or
long-lived changelog references them. They must be unchanged for ten minutes if their process is
proved dead, otherwise for --orphan-grace. It removes nothing from a table that lacks snapshots (a
restore may be running), and never files of other programs. compact and serve do the same.

With --foreign it also removes unreferenced files of other programs in the table's folders (data,
manifests, indexes, statistics, snapshots) that are unchanged for --older-than, and empty bucket and
partition folders. It removes nothing if any snapshot, tag, branch or changelog cannot be read.
serve does this only in tables whose rule has remove_foreign_files: true.
Tables whose live files are missing or damaged are refused without --force.

exit codes: 0 done, or nothing to do; 2 arguments or configuration; 3 something failed or was
interrupted; 4 nothing failed, but a table is not supported; 77 permission denied
""",
    "verify": """\
check that all files of tables exist and match their metadata
examples:
  compactord verify --warehouse /data/wh --table sales.orders
  compactord verify --warehouse /data/wh --table sales.orders --snapshot 4711
  compactord verify --config compactord.yaml --tables 'sales\\..*' --footers 0 --json
  compactord verify --warehouse s3://bucket/wh --table sales.orders --all-snapshots --footers all
  compactord verify --config compactord.yaml --all --pages 1%
  compactord verify --warehouse /data/wh --table sales.orders --pages all

It only reads, and needs no Spark. It checks every snapshot, tag and branch: none is missing between
the oldest and the newest, the hints are right, and schemas, manifests, statistics and index files
exist with their sizes and can be read. It checks the newest snapshot (or --snapshot, --tag, or
all): data files exist with their sizes, files above level 0 do not overlap, deletion vectors belong
to live files. It reads footers and row counts of a sample of files. It reads pages only with
--pages: checksums (or decoding), row counts, the order of keys, statistics, deletion vectors. Only
--pages all can prove that a table is whole ("whole": true; false if anything is wrong, else null).
It searches twice for missing files, ten seconds apart, as they may be expiring; if expiry takes
long, verify again. Anything that could not be verified is listed, and is no finding.

exit codes: 0 no problem was found; 2 arguments or configuration; 3 a problem was found, or a file
cannot be read; 4 nothing failed, but a table is not supported; 77 permission denied
""",
    "catalog register": f"""\
register the tables of a warehouse in the database of a catalog
examples:
{_of_catalogs("register")}
  compactord catalog register --config compactord.yaml --catalog lake --all --execute

For a warehouse that writers used with a filesystem catalog: it lists the warehouse's tables, and
prints the SQL that adds them to the catalog's database; --execute runs it. A second run adds
nothing. It neither reads nor changes the tables' files. Switch all writers at the same time: a
writer that still uses the old catalog takes no lock.

exit codes: 0 printed or done; 2 arguments or configuration; 3 the database or a folder cannot be
read; 77 permission denied
""",
    "doctor": """\
check that compactord can work here, and advise what to do
examples:
  compactord doctor
  compactord doctor --warehouse /data/wh
  compactord doctor --warehouse gs://bucket/wh --unlocked-writers guarded
  compactord doctor --config /etc/compactord/compactord.yaml --json

Run it as the user of serve, on the machine or in the pod of serve. It starts no Spark. In each
warehouse it creates a folder .compactord-probe-… and removes it again; it only reads tables.

exit codes: 0 nothing failed (warnings may have been given); 2 arguments or configuration; 3 a check
failed
""",
    "serve": """\
compact all tables of a warehouse continuously
examples:
  compactord serve --warehouse /data/wh
  compactord serve --config config/compactord.yaml
  compactord serve --config compactord.yaml --set service.http.port=9500 --set log.level=debug
  COMPACTORD__CATALOGS__LAKE__WAREHOUSE=/data/wh compactord serve --config compactord.yaml

At its start it checks every catalog. It exits at once if all are permanently unusable: no such
folder (2), no permission (77). While it runs, it retries stores that fail or do not answer.

signals: SIGTERM and SIGINT drain (running merges finish and are committed); a second one cancels;
SIGHUP reads the configuration again; SIGUSR1 writes the stacks of all threads to the log

exit codes: 0 stopped on request; 2 arguments or configuration, or no such warehouse; 69 no Java,
or no Spark in time; 77 permission denied; 1 a defect of compactord
""",
    "config": """\
check or show the configuration of serve
examples:
  compactord config check --config config/compactord.yaml
  compactord config check --online --config config/compactord.yaml     # checks the warehouses
  compactord config check --config config/compactord.yaml --json | jq .problems
  compactord config show --config config/compactord.yaml --set defaults.priority=80
  compactord config schema > compactord.schema.json

precedence, high to low: --set, COMPACTORD__SECTION__KEY in the environment, the file, defaults
""",
    "top": """\
watch a service, or the tables of a warehouse
examples:
  compactord top --url http://daemon:9464
  compactord top --warehouse /data/wh --interval "5 s"
  compactord top --url http://daemon:9464 --once
  compactord top --warehouse /data/wh --once --json | jq '.tables[] | select(.need != "nothing")'

on a terminal, q ends it; otherwise it prints plain frames
""",
    "status": """\
check whether a service is well, on one page and by the exit code
examples:
  compactord status --url http://daemon:9464
  compactord status --url http://daemon:9464 --json | jq -r '.problems[].what'
  compactord status --url http://daemon:9464 --nagios

exit code: 0 well, 10 degraded, 11 critical, 12 no answer
""",
    "completion": """\
print a script that completes commands and options in a shell
examples:
  compactord completion bash | sudo tee /etc/bash_completion.d/compactord
  source <(compactord completion bash)
  compactord completion zsh > ~/.zfunc/_compactord
""",
    "config check": "check the configuration and list all errors",
    "config show": "print every value in effect and where it came from",
    "config schema": "print the JSON Schema of the file",
    "catalog": "register the tables of a warehouse in the database of a catalog",
}
