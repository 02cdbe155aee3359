# The machine that is backed up: whoever has told its public key may come in, and its files change when they are to.
. ./ground.sh
. ./walk.sh
mkdir -p /home/data
head -c 2M /dev/urandom >/home/data/large
serve 127.0.1.1
done=
until [ -n "$done" ]; do
    cat /shared/*.pub >/root/.ssh/new 2>/dev/null && mv /root/.ssh/new /root/.ssh/authorized_keys
    for number in 1 2 3 4 5 6 7; do
        if [ -e "/shared/change-$number" ] && [ ! -e "/shared/source-$number" ]; then
            echo "$number" >"/home/data/new-$number"
            echo "$number" >>/home/data/grows
            manifest /home/data >/shared/source.new
            mv /shared/source.new "/shared/source-$number"
        fi
    done
    if [ -e /shared/all-done ] || [ -e /shared/failed ]; then done=1; fi
    sleep 0.1
done
