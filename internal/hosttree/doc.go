// Package hosttree reads and changes the files of this host, or of a tree that is prepared for
// another host. No path leads out of the tree, and nothing in it is executed.
//
//	t := hosttree.Tree{Root: "/"}
//	c, err := t.Change(hosttree.OtherFile, "/etc/example.conf", []byte("a = 1\n"))
//	fmt.Print(c.Diff())
//	err = t.Apply(c)
//
// A Change has a file's content before and after: it can be shown, made and undone.
package hosttree
