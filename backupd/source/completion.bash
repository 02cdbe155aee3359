# Completion of btrkeep-source in bash: /usr/share/bash-completion/completions/btrkeep-source on a host.
complete -o default -W 'check clean begin end restore call --server --config --state --json --scheduled --version --help' btrkeep-source
