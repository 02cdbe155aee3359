"""A second copy: fetches the backups of another pool by btrfs send and receive, over ssh or from a disk of this machine.

- Here: `fetch_plan` compares the other pool with this one, `fetch_hosts` fetches what is planned, some hosts at a time,
  `host_copies` one host. `receiver` takes a stream that `stream_guard` has checked, `naming` checks the result and gives it its
  name, `finisher` finishes a host while the next host is fetched. `outcome` has the plan and the results.
- There: `sender` lists and sends. `remote_pool` is the connection to it, `wire` the format of its messages.
- `push` connects from the sending server. `initial_copy` writes the newest backups as files to a disk, and reads them there.
"""
