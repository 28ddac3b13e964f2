// Package semver reads the versions of programs, such as containerd, dockerd and runc, from what
// they print: also those of distributions, which package one version under a number of their own.
//
//	v, err := semver.Parse("containerd containerd.io 1.7.24 88bf19b2")
//	merges := v.AtLeast(2, 1, 0)
package semver
