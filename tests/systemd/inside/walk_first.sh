# The first server: two nights, it is away while the second one takes over, comes back, and is lost at last.
. ./ground.sh
. ./walk.sh
serve 127.0.1.2
page make s/backup2/backup1/
cp /etc/btrkeep/id_ed25519.pub /shared/first.pub
page fingerprint >/shared/first-fingerprint
knows_web1
for night in 1 2; do
    changed "$night"
    backupd run --all
done
tell first-has-two
await second.pub
let_in pull-line second
configured fetched-by
tell first-is-asked
await second-has-two
backupd status --json >/shared/first-status
backupd retention explain web1 >/shared/explained
page stop
tell first-is-away

await second-has-three # it comes back
page known 's/backup1/backup2/g' >/dev/null
printf '\n[replica.back]\nfrom = "ssh://root@backup2.example.org"\n' >>/etc/btrkeep/main.toml
asked demote-back web1
backupd run --all
page fetch-back
copy first-3
tell first-fetched-back
await second-stands
page fetch-back
asked promote web1
tell first-promoted
await second-demoted
changed 4
backupd run --all
tell first-has-four
await second-has-four
