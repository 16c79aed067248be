# Completion of rl-sync and of `python -m rl_sync` in fish. To install it:
#
#     rl-sync completion fish > ~/.config/fish/conf.d/rl_sync.fish

function __rl_sync_candidates
    set -l words (commandline --tokenize --current-process --cut-at-cursor)
    set -l ask (string replace -r '^~' $HOME -- $words[1])
    string match -q -r '(^|/)rl-sync$' -- $ask; or set -a ask -m rl_sync
    set -l current (commandline --current-token --cut-at-cursor)
    $ask complete --words $words "$current" 2>/dev/null
end

# `python -m rl_sync`, and `python -m launcher` in the clone, are ours; other programs of Python are completed as they were before.
function __rl_sync_of_python
    set -l words (commandline --tokenize --current-process --cut-at-cursor)
    test "$words[2]" = -m; and contains -- "$words[3]" launcher rl_sync
end

complete -c rl-sync -f -a '(__rl_sync_candidates)'
complete -c python -n __rl_sync_of_python -f -a '(__rl_sync_candidates)'
complete -c python3 -n __rl_sync_of_python -f -a '(__rl_sync_candidates)'
