// Package tomledit puts lines into a TOML file of an operator and takes them out again; every other
// byte stays. Added lines are between two marker comments, and a line that they replace becomes a
// comment.
//
//	text = tomledit.SwitchOff(text, []string{"plugins", "a"})
//	text = slices.Concat(text, []byte(tomledit.Block(body)))
//	before, err := tomledit.Strip(text)
//
// Tables are found by the lines of their headers, which is not all of TOML: Check compares the
// result with what is wanted.
package tomledit
