# Completion of rl-sync and of `python -m launcher` in fish.
#
# To install it:
#
#     rl-sync completion fish > ~/.config/fish/conf.d/rl_sync.fish
#
# `python -m launcher completion fish` prints the same.

function __rl_sync_candidates
    set -l words (commandline --tokenize --current-process --cut-at-cursor)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    set -l current (commandline --current-token --cut-at-cursor)
    if string match -q -r '(^|/)rl-sync$' -- $program
        $program complete --words $words "$current" 2>/dev/null
    else
        $program -m launcher complete --words $words "$current" 2>/dev/null
    end
end

# `python -m launcher` is ours; other programs of Python are completed as they were before.
function __rl_sync_of_python
    set -l words (commandline --tokenize --current-process --cut-at-cursor)
    test "$words[2..3]" = "-m launcher"
end

complete -c rl-sync -f -a '(__rl_sync_candidates)'
complete -c python -n __rl_sync_of_python -f -a '(__rl_sync_candidates)'
complete -c python3 -n __rl_sync_of_python -f -a '(__rl_sync_candidates)'
