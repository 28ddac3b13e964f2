// Package term prints tables and labelled text for people. On a terminal, lines fit its width and
// some words are coloured, unless NO_COLOR (no-color.org) is set or TERM is "dumb". Pipes and files
// get the same text, complete and without colours.
//
//	o := term.New(os.Stdout)
//	t := o.Table("INDEX", "UUID", "MODEL")
//	t.Row(term.Green, "0", uuid, "NVIDIA H200")
//	t.Flush()
//
// Control characters in values are replaced, since process and pod names may come from anyone.
package term
