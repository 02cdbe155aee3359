# What the three machines of a takeover share: one network, the folder /shared, and one pair of keys and host keys.
# shellcheck shell=bash

tell() { touch "/shared/$1"; }
await() {
    until_true 90 eval "test -e /shared/$1 || test -e /shared/failed"
    test ! -e /shared/failed
}

# listen ADDRESS [OPTIONS]: an ssh server there, for the key of the session; OPTIONS stand before it in authorized_keys.
listen() {
    mkdir -p -m 700 /run/sshd /root/.ssh
    echo "${2:-} $(cat /shared/key.pub)" >/root/.ssh/authorized_keys
    chmod 600 /root/.ssh/authorized_keys
    /usr/sbin/sshd -o ListenAddress="$1"
}

# known: the key and the host keys (all machines are made of one folder) where btrkeep looks for them.
known() {
    mkdir -p /etc/btrkeep
    install -m 600 /shared/key /etc/btrkeep/id_ed25519
    sed 's/^/127.0.1.1,127.0.1.2 /' /etc/ssh/ssh_host_*_key.pub >/etc/btrkeep/known_hosts
}

# manifest FOLDER: everything in it, by programs that are not ours.
manifest() {
    (
        cd "$1"
        find . -printf '%P %y %m %U %G %l %n %T@\n' | grep -v '^[^ ]* d ' | sort
        find . -type f -print0 | sort -z | xargs -0 sha256sum
        getfattr -R -d -m - . 2>/dev/null | sort
    )
}

HOST='
[host.web1]
address = "root@127.0.1.1"
paths = ["/home/data"]
'
