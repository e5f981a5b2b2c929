"""`impyard completion`: the script that makes a shell complete what is typed. The answers are `completing.py`'s."""

from __future__ import annotations

import click

# click's own for bash takes a colon for the end of a word, as bash itself does, and models have colons in their names.
BASH = r"""_impyard_completion() {
    local line=${COMP_LINE:0:COMP_POINT} command=$1 word cut= item
    if [[ $command == "~/"* ]]; then command=$HOME/${command#"~/"}; fi
    type -P -- "$command" >/dev/null || command=impyard
    word=${line##*[[:space:]=]}
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then cut=${word%"${word##*:}"}; fi
    COMPREPLY=()
    while IFS= read -r item; do
        case $item in
        plain,*) item=${item#plain,} COMPREPLY+=("${item#"$cut"}") ;;
        file,*) compopt -o default ;;
        dir,*) compopt -o dirnames ;;
        esac
    done < <(env IMPYARD_LINE="$line" _IMPYARD_COMPLETE=bash_complete "$command" 2>/dev/null)
}
complete -o nosort -F _impyard_completion impyard
"""
ZSH = r"""#compdef impyard
_impyard_completion() {
    local -a described plain response
    local kind value about
    (( ! $+commands[impyard] )) && return 1
    response=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \
        _IMPYARD_COMPLETE=zsh_complete impyard 2>/dev/null)}")
    for kind value about in ${response}; do
        case $kind in
        dir) _path_files -/ ;;
        file) _path_files -f ;;
        plain) if [[ $about == _ ]]; then plain+=("$value"); else described+=("$value:$about"); fi ;;
        esac
    done
    [[ -n $described ]] && _describe -V unsorted described -U
    [[ -n $plain ]] && compadd -U -V unsorted -a plain
    return 0
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _impyard_completion "$@"
else
    compdef _impyard_completion impyard
fi
"""
FISH = r"""function _impyard_completion
    for line in (env _IMPYARD_COMPLETE=fish_complete COMP_WORDS=(commandline -cp | string collect) \
            COMP_CWORD=(commandline -t | string collect) impyard 2>/dev/null)
        set -l parts (string split -m 1 "," -- $line)
        switch $parts[1]
            case dir
                __fish_complete_directories $parts[2]
            case file
                __fish_complete_path $parts[2]
            case plain
                echo $parts[2]
        end
    end
end
complete --no-files --keep-order --command impyard --arguments "(_impyard_completion)"
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


@click.command()
@click.argument("shell", type=click.Choice(list(SCRIPTS)))
def completion(shell: str) -> None:
    """Print the script that completes impyard's commands, options, runs, models and keys in SHELL.

    \b
    source <(impyard completion bash)      in ~/.bashrc
    source <(impyard completion zsh)       in ~/.zshrc, after compinit
    impyard completion fish | source       in ~/.config/fish/config.fish
    """
    click.echo(SCRIPTS[shell], nl=False)
