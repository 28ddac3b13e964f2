// Package place decides where what a container gets goes: in its config.json, in its image, in the
// view of the driver's files, which is mounted at view.Dir, and in the mask over /proc/driver. It
// knows nothing of who may have what.
//
//	removed := place.RemoveReplaced(c, driverFiles, nodes)
//	root, err := place.ReadMounts(c, img, removed.Edits.RemoveMount)
//	changes, err := place.Files(c, root, given, compatDriver)
//
// Each part takes values and returns Changes; Add joins them. Only the methods Ensure, MakeLinks,
// WriteLinkerFiles and WriteBundle change anything.
package place
