// Package layout determines the paths of the driver's files in a container: in the view, which is
// mounted at ViewDir, and in the few other places where programs look without asking the loader.
//
//	spec := layout.View(files)
//	entries, dirs := layout.LoaderEntries(files)
//
// It is pure: it takes lists of files and returns names and paths.
package layout
