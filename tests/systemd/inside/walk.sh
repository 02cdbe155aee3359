# What the machines of the walks through docs/second-copy.rst share: names, ssh, and lines of the page, typed as they stand there.
# shellcheck shell=bash
mkdir -p -m 700 /root/.ssh /run/sshd
printf '%s\n' '127.0.1.1 web1.example.org' '127.0.1.2 backup1.example.org' '127.0.1.3 backup2.example.org' >>/etc/hosts
rm -f /etc/ssh/ssh_host_* # all machines are made of one folder
ssh-keygen -q -A

tell() { touch "/shared/$1"; }
await() {
    until_true 400 eval "test -e /shared/$1 || test -e /shared/failed"
    test ! -e /shared/failed
}
changed() { # the host's files change
    tell "change-$1"
    await "source-$1"
}

# page NAME [SED]: types those lines of the page, with another server's name perhaps.
page() { bash -euxc "$(sed "${2:-}" "page-$1")"; }

# asked NAME ANSWER [SED]: the same at a terminal, which asks.
asked() { printf '%s\n' "$2" | script -qefc "$(sed "${3:-}" "page-$1")" /dev/null; }

# configured NAME: appends what the page has for the configuration.
configured() { printf '\n%s\n' "$(cat "page-$1")" >>/etc/btrkeep/main.toml; }

# without SECTION: takes a section of the page and the one that belongs to it out of the configuration.
without() { sed -i "/^\[$1[].]/,/^\$/d" /etc/btrkeep/main.toml; }

# serve ADDRESS: an ssh server there.
serve() { /usr/sbin/sshd -o ListenAddress="$1"; }

# let_in LINE KEY [SED]: the page's line of authorized_keys, which ends with what that key's file has; it is the only one.
let_in() {
    sed "${3:-}; s|ssh-ed25519 AAAA.*|$(cat "/shared/$2.pub")|" "page-$1" >/root/.ssh/authorized_keys
    chmod 600 /root/.ssh/authorized_keys
}

# knows_web1: the host and its key are known here, as a first server knows them.
knows_web1() {
    printf '\n[host.web1]\naddress = "root@web1.example.org"\npaths = ["/home/data"]\n' >>/etc/btrkeep/main.toml
    ssh-keyscan -t ed25519 web1.example.org >>/etc/btrkeep/known_hosts 2>/dev/null
}

# copy NUMBER: what the newest backup here has, beside what the host had.
copy() { manifest "$(find /srv/backup/hosts/web1 -maxdepth 1 -name '2*' | sort | tail -n 1)/data/home/data" >"/shared/$1"; }

manifest() {
    (
        cd "$1"
        find . -printf '%P %y %m %U %G %l %n %T@\n' | grep -v '^[^ ]* d ' | sort
        find . -type f -print0 | sort -z | xargs -0 sha256sum
    )
}
