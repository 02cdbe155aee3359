# The second backup server: it fetches, takes over when the first one is gone, and goes on with the host itself.
. ./ground.sh
. ./three.sh
known
configure '
[replica.office]
from = "ssh://root@127.0.1.2"
'
data=/srv/backup/hosts/web1
await first-is-asked
attempt btrkeep-replicate@main.service
manifest "$(ls -d $data/2* | head -n 1)/data/home/data" >/shared/copy-1
manifest "$(ls -d $data/2* | tail -n 1)/data/home/data" >/shared/copy-2
btrfs subvolume show "$(ls -d $data/2* | tail -n 1)" >/shared/copy-shown
backupd list --all --json >/shared/copies

(umask 077 && echo 'keep it elsewhere, too' >/etc/btrkeep/offsite.password)
echo '[offsite.far]
repository = "/srv/offsite"
password_file = "/etc/btrkeep/offsite.password"' >>/etc/btrkeep/main.toml
attempt btrkeep-verify@main.service
attempt btrkeep-drill@main.service
backupd list --all --json >/shared/verified
backupd status --json >/shared/drilled
backupd offsite init far
attempt btrkeep-offsite@main.service
restic --repo /srv/offsite --password-file /etc/btrkeep/offsite.password restore latest --host web1 --target /root/from-offsite
manifest /root/from-offsite/btrkeep/data/home/data >/shared/offsite-2
tell fetched

await third-day # the first server is gone
backupd replicate --json >/shared/from-nobody && echo 'fetched from nobody' >&2 && exit 1
backupd list --all --json >/shared/copies-later
backupd promote web1 --yes
echo "$HOST" >>/etc/btrkeep/main.toml
# The machines share the network with other tests, so what crosses this ssh is counted, and not what the network says.
cat >/root/counted-ssh <<'S'
#!/bin/bash
set -o pipefail
ssh "$@" | tee >(wc -c >>/shared/bytes-of-the-night)
S
chmod 755 /root/counted-ssh
printf '[ssh]\ncommand = "/root/counted-ssh"\n' >>/etc/btrkeep/main.toml
backupd run web1 # by name: it is not due again on this day
manifest "$(ls -d $data/2* | tail -n 1)/data/home/data" >/shared/copy-3
backupd list --all --json >/shared/backups
backupd restore web1@"$(basename "$(ls -d $data/2* | head -n 1)")" /home/data --privileged --to /root/restored >/dev/null
manifest /root/restored/data >/shared/restored-1
tell all-done
