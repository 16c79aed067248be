# Completion of rl-sync and of `python -m rl_sync` in bash. To install it, put into ~/.bashrc:
#
#     source <(rl-sync completion bash)

_rl_sync() {
    local line="${COMP_LINE:0:COMP_POINT}" breaks="${COMP_WORDBREAKS//[^=:]/}"
    local word="${line##*[[:space:]]}" head="" candidate ask=("${COMP_WORDS[0]/#\~/$HOME}")
    [[ ${ask[0]##*/} == rl-sync ]] || ask+=(-m rl_sync)
    # Readline replaces the part of a word after the last = or :, and no more.
    if [[ -n $breaks && $word == *[$breaks]* ]]; then
        head="${word%"${word##*[$breaks]}"}"
    fi
    compopt -o nospace 2>/dev/null
    COMPREPLY=()
    while IFS=$'\t' read -r candidate _; do
        candidate="${candidate#"$head"}"
        if [[ $candidate == *[!A-Za-z0-9_./=,:@%+~-]* ]]; then
            printf -v candidate %q "$candidate"
        fi
        case "$candidate" in
            *[=/.,]) ;;
            *) candidate+=" " ;;
        esac
        COMPREPLY+=("$candidate")
    done < <("${ask[@]}" complete --line "$line" 2>/dev/null)
}

# `python -m rl_sync`, and `python -m launcher` in the clone, are ours; other programs of Python are completed as they were before.
_rl_sync_python() {
    if [[ ${COMP_LINE:0:COMP_POINT} =~ [[:space:]]-m[[:space:]]+(launcher|rl_sync)[[:space:]] ]]; then
        _rl_sync
    elif [[ -n $_rl_sync_before ]]; then
        "$_rl_sync_before" "$@"
    fi
}

if [[ $(complete -p python 2>/dev/null) =~ -F\ ([^ ]+) && ${BASH_REMATCH[1]} != _rl_sync* ]]; then
    _rl_sync_before="${BASH_REMATCH[1]}"
fi
complete -F _rl_sync rl-sync
complete -o bashdefault -o default -F _rl_sync_python python python3
