// Package tomledit adds lines to an operator's TOML file and removes them again; every other byte
// stays. Added lines are between two marker comments, and a line that they replace becomes a
// comment.
//
//	text = tomledit.SwitchOff(text, []string{"plugins", "a"})
//	text = slices.Concat(text, []byte(tomledit.Block(body)))
//	before, err := tomledit.Strip(text)
//
// Tables are found by their header lines, which does not cover all of TOML: Check compares the
// result with the intended content.
package tomledit
