# The first backup server: two nights, then it is asked for them, and then it is gone.
. ./ground.sh
. ./three.sh
known
configure "$HOST"
await host-up
attempt btrkeep-backup@main.service
tell first-night
await second-day
backupd run --all >/dev/null
backupd hold web1 "$(basename "$(ls -d /srv/backup/hosts/web1/2* | head -n 1)")" --why 'the day we began' >/dev/null
listen 127.0.1.2 'restrict,command="/usr/local/sbin/backupd --pool main send-only --replica backup2"'
tell first-is-asked
await fetched
