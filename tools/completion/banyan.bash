# Completion of banyan's command line in bash, with bash-completion. `banyan __complete` knows the words
# (tools/cli/complete.h).

_banyan() {
    local cur prev words cword
    _init_completion -n =: || return
    local word rest answers=()
    local program=${words[0]/#\~\//"$HOME"/}
    while IFS=$'\t' read -r word rest; do
        case $word in
            :files) _banyan_files ;;
            :json) _banyan_files json ;;
            :folders) _banyan_files -d ;;
            :command)
                _banyan_command "$rest"
                return
                ;;
            "$cur"*) answers+=("$word") ;;
        esac
    done < <("$program" __complete "${words[@]:1:cword-1}" "$cur" 2>/dev/null)
    # Readline replaces only what stands behind the last "=" or ":", if these break words.
    local kept=${cur%"${cur##*["$COMP_WORDBREAKS"]}"}
    COMPREPLY=("${answers[@]#"$kept"}")
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    return 0
}

# Files for the part of the word behind the prefix $rest; the arguments are those of _filedir.
_banyan_files() {
    local cur=${cur#"$rest"} COMPREPLY=()
    _filedir "$@"
    answers+=("${COMPREPLY[@]/#/$rest}")
}

# The last $1 words are a command line. The words are counted as bash splits them.
_banyan_command() {
    local before="${words[*]:0:cword+1-$1}" seen="" offset=0
    before=${before// /}
    while [[ ${#seen} -lt ${#before} ]]; do
        seen+=${COMP_WORDS[offset++]// /}
    done
    _command_offset "$offset"
}

complete -F _banyan banyan
