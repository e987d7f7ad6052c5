# Completion for lockstep, gpt, gpt-serve, mlp and cnn: commands and options come from the program's --help.
_lockstep() {
  local program=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} commands=() help below other
  help=$("$program" --help 2>/dev/null) || return
  for other in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ $other == -- ]] && return  # another program's words
    below=$(sed -n '/^Subcommands:/I,$p' <<<"$help" | grep -oE '^  [a-z][a-z_-]*')
    if [[ $'\n'${below// /}$'\n' == *$'\n'$other$'\n'* ]]; then
      commands+=("$other")
      help=$("$program" "${commands[@]}" --help 2>/dev/null) || return
    fi
  done
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$(grep -oE -- '--[a-z][a-z0-9-]*' <<<"$help" | sort -u)" -- "$word"))
  else
    COMPREPLY=($(compgen -W "$(sed -n '/^Subcommands:/I,$p' <<<"$help" | grep -oE '^  [a-z][a-z_-]*')" -- "$word") $(compgen -f -- "$word"))
  fi
}
complete -o filenames -F _lockstep lockstep gpt gpt-serve mlp cnn
