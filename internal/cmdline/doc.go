// Package cmdline defines the error of an invalid command line, for packages that detect it only
// when they examine the host (nvidia-shimctl then exits with status 2), and the text of errors.
package cmdline
