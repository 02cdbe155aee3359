# A new first server, with an empty pool and a new host key, in the place of the one that is lost; later the second cannot reach it.
. ./ground.sh
. ./walk.sh
await first-is-gone
serve 127.0.1.2
page make s/backup2/backup1/
cp /etc/btrkeep/id_ed25519.pub /shared/new.pub
page known 's/backup1/backup2/g' >/dev/null
printf '\n[replica.back]\nfrom = "ssh://root@backup2.example.org"\n' >>/etc/btrkeep/main.toml
await second-has-five
page check
page fetch-back
copy new-5
tell new-fetched
await second-stands-again
page fetch-back
asked promote web1
knows_web1
let_in pull-line second
tell new-promoted
await second-demoted-again
changed 6
backupd run --all
tell new-has-six
await second-is-sent-to
without replica.back
configured push
changed 7
backupd run --all
page check
page send
backupd status --json >/shared/new-status
tell new-has-sent
await all-done
