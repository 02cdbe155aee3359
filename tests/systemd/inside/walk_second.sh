# The second server: it fetches, takes over, gives back, takes over for good, gives back to a new server, and is sent to at last.
. ./ground.sh
. ./walk.sh
serve 127.0.1.3
await first-has-two
page make
cp /etc/btrkeep/id_ed25519.pub /shared/second.pub
page known >/shared/second-known
configured replica
await first-is-asked
page check
page dry-run
page fetch
page timer
backupd status --json >/shared/second-status
copy second-2
tell second-has-two

await first-is-away
asked promote web1
knows_web1
page check || true # the first server is away
changed 3
page run-all
without replica.office
copy second-3
backupd status --json >/shared/second-alone
let_in pull-line first s/backup2/backup1/
tell second-has-three
await first-fetched-back
page stop
tell second-stands
await first-promoted
configured replica
asked demote-office web1
tell second-demoted
await first-has-four
page fetch
copy second-4
tell second-has-four

await first-is-gone
asked promote web1
changed 5
page run-all
without replica.office
await new.pub
let_in pull-line new s/backup2/backup1/
tell second-has-five
await new-fetched
page stop
tell second-stands-again
await new-promoted
page forget-key
page known >/dev/null
configured replica
asked demote-office web1
tell second-demoted-again
await new-has-six
page fetch
copy second-6

without replica.office # the first server cannot be reached any more
configured push-replica
let_in push-line new
tell second-is-sent-to
await new-has-sent
copy second-7
backupd list --all --json >/shared/second-list
backupd verify
tell all-done
