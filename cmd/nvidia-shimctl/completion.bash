# bash completion of nvidia-shimctl. The words go to the program as they are typed: the script of the
# command line library evaluates them, and so executes substitutions and redirections.
_nvidia_shimctl() {
	local current=${COMP_WORDS[COMP_CWORD]} line
	local words=("${COMP_WORDS[@]:0:COMP_CWORD}")
	[[ $current == -* ]] && words+=("$current")
	COMPREPLY=()
	while IFS= read -r line; do
		line=${line%%:*}
		[[ $line == "$current"* ]] && COMPREPLY+=("$line")
	done < <("${words[@]}" --generate-shell-completion 2>/dev/null)
}
complete -o bashdefault -o default -F _nvidia_shimctl nvidia-shimctl
