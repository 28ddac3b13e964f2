// Package cmdline has the error of a command line that cannot be followed, for packages that find
// that out when they look at the host: nvidia-shimctl ends with status 2 then.
package cmdline
