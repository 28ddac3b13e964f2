// Package term writes what people read: colours, and tables and paragraphs that fit a
// terminal.
//
// In: the writer of a command. Out: text with colours where that writer is a terminal
// that wants them, and the same text without where it is a pipe, a file or a test's
// buffer. What a program may read out of a pipe never depends on the width of
// somebody's terminal, so nothing is cut or wrapped there.
//
//	o := term.New(w)
//	t := o.Table("INDEX", "UUID", "MODEL")
//	t.Row(term.Text("0"), term.Text(uuid), term.Styled(term.Green, "NVIDIA H200"))
//	err := t.Flush()
//
// NO_COLOR (no-color.org) and TERM=dumb mean no colours. It must never interpret what
// it prints: control characters of a value are made visible, because names of images
// and processes come from others.
package term
