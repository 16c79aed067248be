#compdef rl-sync
# Completion of rl-sync and of `python -m rl_sync` in zsh. To install it, put into ~/.zshrc, after
# `autoload -U compinit && compinit`:
#
#     source <(rl-sync completion zsh)

_rl_sync() {
    local program=${~${(Q)words[1]}} line text
    local -a given ask finished unfinished told of
    given=("${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}")
    ask=($program)
    [[ ${program:t} == rl-sync ]] || ask+=(-m rl_sync)
    for line in "${(@f)$($ask complete --words "${given[@]}" 2>/dev/null)}"; do
        text=${line%%$'\t'*}
        [[ -n $text ]] || continue
        line=${line/$'\t'/  -- }
        if [[ $text == *[=/.,] ]]; then
            unfinished+=("$text") told+=("${line[1,COLUMNS-2]}")
        else
            finished+=("$text") of+=("${line[1,COLUMNS-2]}")
        fi
    done
    compadd -l -S '' -d told -a unfinished
    compadd -l -d of -a finished
}

# `python -m rl_sync`, and `python -m launcher` in the clone, are ours; other programs of Python are completed as they were before.
_rl_sync_python() {
    if (( CURRENT > 3 )) && [[ $words[2] == -m && $words[3] == (launcher|rl_sync) ]]; then
        _rl_sync
    else
        $_rl_sync_before
    fi
}

if [[ $funcstack[1] == _rl_sync ]]; then
    _rl_sync "$@"
else
    [[ $_comps[python] == _rl_sync* ]] || typeset -g _rl_sync_before=${_comps[python]:-_default}
    compdef _rl_sync rl-sync
    compdef _rl_sync_python python python3
fi
