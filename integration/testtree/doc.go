// Package testtree lays out trees of files for tests, with processes and libraries, and compares them.
package testtree
