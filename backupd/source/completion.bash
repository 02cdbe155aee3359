# Completion of btrkeep-source in bash: /usr/share/bash-completion/completions/btrkeep-source on a host.
complete -o default -W 'check clean begin end restore --server --config --state --version --help' btrkeep-source
