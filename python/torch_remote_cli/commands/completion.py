"""Prints the completion script of a shell: commands, and the options of each."""

from __future__ import annotations

import argparse
import re
import subprocess

from .. import dispatch, server_program
from ..errors import OK

EPILOG = """\
examples:
  torch-remote completion bash > ~/.local/share/bash-completion/completions/torch-remote
  torch-remote completion zsh > "${fpath[1]}/_torch-remote"
  torch-remote completion fish > ~/.config/fish/completions/torch-remote.fish

exit status: 0; 2 wrong usage
"""

BASH = """\
# bash completion of torch-remote; written by `torch-remote completion bash`
_torch_remote_machines() {{
  local file
  for file in "${{XDG_STATE_HOME:-$HOME/.local/state}}"/torch-remote/machines/*.json; do
    [ -e "$file" ] && basename "$file" .json
  done
}}
_torch_remote() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} options=""
  if [ "$COMP_CWORD" = 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "{commands} --help --version" -- "$word")
    return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
  elif [ "${{COMP_WORDS[1]}}" = completion ]; then
    mapfile -t COMPREPLY < <(compgen -W "bash zsh fish" -- "$word")
  elif [[ " {named} " == *" ${{COMP_WORDS[1]}} "* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_torch_remote_machines)" -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}}
complete -o filenames -F _torch_remote torch-remote
"""

ZSH = """\
#compdef torch-remote
# zsh completion of torch-remote; written by `torch-remote completion zsh`
_torch_remote_machines() {{
  local -a names
  names=(${{XDG_STATE_HOME:-$HOME/.local/state}}/torch-remote/machines/*.json(N:t:r))
  compadd -a names
}}
_torch_remote() {{
  local -a commands
  commands=(
{commands}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case $words[2] in
{cases}
    *) _files ;;
  esac
}}
_torch_remote "$@"
"""


FISH = """\
function __torch_remote_machines
  set -l state $XDG_STATE_HOME
  test -n "$state"; or set state $HOME/.local/state
  for file in $state/torch-remote/machines/*.json
    string replace -r '.*/(.*)\\.json$' '$1' -- $file
  end
end
"""

# These take names of machines, whose records are files: torch_remote._running.
NAMED = ("down", "logs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(options: argparse.Namespace) -> int:
    print({"bash": bash, "zsh": zsh, "fish": fish}[options.shell](), end="")
    return OK


def options_of(command: str) -> dict[str, str]:
    """The long options of a command, each with its help."""
    if command == "serve":
        return _options_of_server()
    found = {}
    for action in dispatch.parser_of(command)._actions:
        for option in action.option_strings:
            if option.startswith("--"):
                found[option] = (action.help or "").split(";")[0]
    return found


def _options_of_server() -> dict[str, str]:
    server = server_program.find()
    if server is None:
        return {}
    done = subprocess.run([server, "--help"], capture_output=True, text=True, check=False)
    return dict.fromkeys(re.findall(r"^\s+(?:-\w,)?(--[\w-]+)", done.stdout, re.M), "")


def bash() -> str:
    cases = "\n".join(
        f'    {command}) options="{" ".join(options_of(command))}" ;;'
        for command in dispatch.COMMANDS
    )
    commands = " ".join(dispatch.COMMANDS)
    return BASH.format(commands=commands, cases=cases, named=" ".join(NAMED))


def _single_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def zsh() -> str:
    commands = "\n".join(
        f"    {_single_quoted(f'{name}:{summary}')}" for name, summary in dispatch.COMMANDS.items()
    )
    cases = []
    for command in dispatch.COMMANDS:
        words = " ".join(
            _single_quoted(option + (f"[{_plain(text)}]" if text else ""))
            for option, text in options_of(command).items()
        )
        last = "'*:file:_files'"
        if command == "completion":
            last = "'1:shell:(bash zsh fish)'"
        elif command in NAMED:
            last = "'*:machine:_torch_remote_machines'"
        cases.append(f"    {command}) _arguments {words} {last} ;;")
    return ZSH.format(commands=commands, cases="\n".join(cases))


def _plain(text: str) -> str:
    return re.sub(r"[\[\]:`]", " ", text)


def fish() -> str:
    lines = ["# fish completion of torch-remote; written by `torch-remote completion fish`"]
    for name, summary in dispatch.COMMANDS.items():
        lines.append(
            f"complete -c torch-remote -n __fish_use_subcommand -f -a {name} "
            f"-d {_single_quoted(summary)}"
        )
    for command in dispatch.COMMANDS:
        for option, text in options_of(command).items():
            lines.append(
                f"complete -c torch-remote -n '__fish_seen_subcommand_from {command}' "
                f"-l {option.removeprefix('--')}" + (f" -d {_single_quoted(text)}" if text else "")
            )
    lines.append(
        "complete -c torch-remote -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'"
    )
    for command in NAMED:
        lines.append(
            f"complete -c torch-remote -n '__fish_seen_subcommand_from {command}' -f "
            "-a '(__torch_remote_machines)'"
        )
    return "\n".join(lines) + "\n" + FISH
